"""Search for the fastest layout that fits."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.planning.hardware import GIB, Gpu
from fixedcode_megatron.planning.plan import Plan, make_plan

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig

_MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
_FULL_RECOMPUTE = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
_NO_RECOMPUTE: dict[str, Any] = dict.fromkeys(_FULL_RECOMPUTE)


def search(cfg: RunConfig, gpu: Gpu, world_size: int, *, count: int = 1) -> list[Plan]:
    """The `count` fastest layouts that fit, fastest first.

    Raises
    ------
    UserError
        If none fits, naming the one that comes closest.
    """
    plans = [make_plan(layout, gpu, world_size) for layout in layouts(cfg, gpu, world_size)]
    if not plans:
        batch = cfg.training.global_batch_size
        raise UserError(
            f"no layout of {world_size} GPUs shares out --global-batch-size {batch}: the "
            "data-parallel size must divide it"
        )
    fitting = sorted((p for p in plans if p.fits), key=lambda p: (p.time.total, p.memory.total))
    if not fitting:
        closest = min(plans, key=lambda p: p.memory.total)
        raise UserError(
            f"no layout of {world_size} {gpu.name} fits: the leanest needs "
            f"{closest.memory.total / GIB:.0f} GiB of {gpu.memory / GIB:.0f} on a rank "
            f"({' '.join(closest.flags())}); use more GPUs"
        )
    return fitting[:count]


def layouts(cfg: RunConfig, gpu: Gpu, world_size: int) -> Iterator[RunConfig]:
    """Every layout that the model and the batch divide into, as configurations."""
    t, seq = cfg.transformer, cfg.model.seq_length
    for tp in _divisors(t.num_query_groups, at_most=min(gpu.per_node, world_size)):
        if t.ffn_hidden_size % tp or seq % tp:
            continue
        for pp in _divisors(t.num_layers, at_most=world_size // tp):
            for cp in (1, 2, 4, 8):
                # Short sequences are not worth cutting.
                if cp > 1 and (seq // cp < 4096 or seq % (2 * cp * tp)):
                    continue
                if world_size % (tp * pp * cp) == 0:
                    yield from _with_batches(cfg, world_size, tp=tp, pp=pp, cp=cp)


def _with_batches(
    cfg: RunConfig, world_size: int, *, tp: int, pp: int, cp: int
) -> Iterator[RunConfig]:
    batch, dp = cfg.training.global_batch_size, world_size // (tp * pp * cp)
    assert batch is not None
    for micro in _MICRO_BATCHES:
        if batch % (micro * dp):
            continue
        microbatches, per_stage = batch // (micro * dp), cfg.transformer.num_layers // pp
        interleaved = pp > 1 and microbatches % pp == 0
        for chunks in {1, per_stage} if interleaved else {1}:
            for recompute in (_NO_RECOMPUTE, _FULL_RECOMPUTE):
                yield _layout(
                    cfg,
                    tensor_model_parallel_size=tp,
                    pipeline_model_parallel_size=pp,
                    context_parallel_size=cp,
                    virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
                    overlap_p2p_comm=chunks > 1,
                    batch_p2p_comm=chunks == 1,
                    sequence_parallel=tp > 1,
                    micro_batch_size=micro,
                    **recompute,
                )


def _layout(cfg: RunConfig, **values: Any) -> RunConfig:
    found = copy.copy(cfg)
    for section in ("transformer", "training"):
        setattr(found, section, copy.copy(getattr(cfg, section)))
    for name, value in values.items():
        found.set(name, value)
    return found


def _divisors(number: int, *, at_most: int) -> list[int]:
    return [d for d in range(1, min(number, at_most) + 1) if number % d == 0]
