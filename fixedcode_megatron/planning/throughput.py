"""Training speed of several input interfaces on the same model and data, measured in turns.

Every round measures every variant, in an order that alternates, so that whatever drifts (clocks,
temperature, other users of the machine) hits all alike. What is compared are the ratios within a
round.
"""

from __future__ import annotations

import gc
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from fixedcode_megatron.planning.stopwatch import peak_bytes, watch_parts
from fixedcode_megatron.planning.variants import check_variants, variant_config
from fixedcode_megatron.training.memory import held_bytes
from fixedcode_megatron.training.metrics import precision
from fixedcode_megatron.training.nvml import open_monitor
from fixedcode_megatron.training.peaks import peak_flops

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig
    from fixedcode_megatron.runtime import Runtime
    from fixedcode_megatron.training.trainer import Trainer

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Variant:
    """An input interface under test and what was measured of it.

    Attributes
    ----------
    name
        `learned`, `binary`, `gf2`, ..., with `+fold` for first-layer folding.
    seconds
        Of one step, one value a round.
    parts
        Seconds of one instrumented step by part, one dict a round.
    memory
        Bytes by category: parameters, gradients, optimizer, activations.
    joules
        Energy of one step on all GPUs, one value a round, where it can be read.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    joules: list[float] = field(default_factory=list)

    def part(self, name: str) -> float:
        """Median seconds of a part."""
        return statistics.median(parts[name] for parts in self.parts)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All variants, and what their figures are relative to.

    `tokens` are those of a step over all ranks.
    """

    variants: list[Variant]
    tokens: int
    world_size: int
    device_name: str
    flops_per_token: float
    peak: float | None

    def tokens_per_second(self, variant: Variant) -> float:
        """Over all ranks, from the median of the rounds."""
        return self.tokens / statistics.median(variant.seconds)

    def mfu(self, variant: Variant) -> float | None:
        """Model FLOPs utilisation, None where the device's peak is not known."""
        per_rank = self.tokens_per_second(variant) * self.flops_per_token / self.world_size
        return None if self.peak is None else per_rank / self.peak

    def ratios(self, variant: Variant) -> list[float]:
        """Speed relative to the first variant, round by round."""
        first = self.variants[0].seconds
        return [a / b for a, b in zip(first, variant.seconds, strict=True)]


def measure(
    cfg: RunConfig,
    runtime: Runtime,
    names: list[str],
    *,
    rounds: int,
    steps: int,
    warmup: int,
    rebuild: bool,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Measure `names` in turns: `rounds` times `steps` timed steps each.

    Parameters
    ----------
    rebuild
        Build each variant anew in every round and free it after: for models of which the device
        holds only one.
    """
    check_variants(cfg, names)
    variants = [Variant(name=name) for name in names]
    kept: dict[str, Trainer] = {}
    found: Measurement | None = None
    for round_ in range(rounds):
        for variant in variants if round_ % 2 == 0 else variants[::-1]:
            trainer = kept.get(variant.name) or build_variant(cfg, runtime, variant.name)
            found = found or _nothing_yet(trainer, variants)
            if not rebuild:
                kept[variant.name] = trainer
            _measure_round(trainer, variant, steps=steps, warmup=warmup, clock=clock)
            if rebuild:
                del trainer
                free(runtime)
        logger.info("round %d of %d is done", round_ + 1, rounds)
    assert found is not None
    return found


def _nothing_yet(trainer: Trainer, variants: list[Variant]) -> Measurement:
    runtime = trainer.runtime
    return Measurement(
        variants=variants,
        tokens=trainer.global_batch_size * trainer.cfg.model.seq_length,
        world_size=runtime.world_size,
        device_name=runtime.device_name,
        flops_per_token=trainer.shape.flops_per_token,
        peak=peak_flops(runtime.device_name, precision(trainer)),
    )


def build_variant(cfg: RunConfig, runtime: Runtime, name: str) -> Trainer:
    """A trainer of the interface `name` (see `Variant`), weights drawn on the device."""
    from fixedcode_megatron.model.gpt import run_vocabulary
    from fixedcode_megatron.training.trainer import build_trainer

    cfg = variant_config(cfg, name)
    assert cfg.model.vocab_size is not None
    # Drawing billions of weights on the host takes longer than the measurement.
    cfg.set("perform_initialization", False)
    trainer = build_trainer(cfg, runtime, run_vocabulary(cfg, cfg.model.vocab_size))
    with torch.no_grad():
        for model in trainer.models:
            for name, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.02)
                elif name.endswith("bias"):
                    parameter.zero_()
    trainer.optimizer.reload_model_params()
    return trainer


def _measure_round(
    trainer: Trainer, variant: Variant, *, steps: int, warmup: int, clock: Callable[[], float]
) -> None:
    from fixedcode_megatron.training.step import train_step

    batches = [made_up_batches(trainer) for _ in trainer.models]

    def step() -> None:
        train_step(trainer, batches)

    monitor = open_monitor(trainer.runtime.device, trainer.runtime.world_size)
    for _ in range(warmup):
        step()
    _wait_for_all(trainer)
    monitor.report(0)
    start = clock()
    for _ in range(steps):
        step()
    _wait_for_all(trainer)
    variant.seconds.append((clock() - start) / steps)
    joules = monitor.report(0)["energy (J)"]
    if joules is not None:
        variant.joules.append(joules / steps)
    if len(trainer.models) == 1:
        with watch_parts(trainer, clock) as watch:
            step()
        variant.parts.append(watch.seconds)
    if not variant.memory:
        held = zip(("parameters", "gradients", "optimizer"), held_bytes(trainer), strict=True)
        activations = peak_bytes(trainer.runtime.device, step)
        variant.memory = dict(held, activations=activations)


def made_up_batches(trainer: Trainer) -> Iterator[dict[str, Tensor]]:
    """Random ids, the same for every variant; they never end."""
    cfg = trainer.cfg
    assert cfg.model.vocab_size is not None
    generator = torch.Generator().manual_seed(cfg.training.seed)
    length = cfg.model.seq_length // cfg.transformer.context_parallel_size
    shape = (cfg.training.micro_batch_size, length)
    positions = torch.arange(length).expand(shape).contiguous()
    batches = []
    for _ in range(4):
        ids = torch.randint(cfg.model.vocab_size, shape, generator=generator)
        batch = dict(tokens=ids, labels=ids, position_ids=positions, loss_mask=torch.ones(shape))
        if cfg.transformer.context_parallel_size > 1:
            batch["num_tokens"] = torch.tensor(shape[0] * cfg.model.seq_length)
        batches.append(batch)
    while True:
        yield from batches


def _wait_for_all(trainer: Trainer) -> None:
    trainer.runtime.synchronize()
    if dist.get_world_size() > 1:
        dist.barrier()


def free(runtime: Runtime) -> None:
    """Give back what a dropped trainer held; it is full of reference cycles."""
    gc.collect()
    if runtime.device.type == "cuda":
        torch.cuda.empty_cache()
