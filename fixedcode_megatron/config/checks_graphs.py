"""Checks of CUDA graphs: what a replay can be trusted with, and what it cannot.

megatron-core asserts some of this while the model is built, and some not at all.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fixedcode_megatron.config import availability
from fixedcode_megatron.config.options import flag_of
from fixedcode_megatron.config.tree import OPTIONS

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig

_THIS = "--cuda-graph-impl transformer_engine"
_OTHERS: dict[str, str] = {
    "local": (
        "its graphs, recorded in training, would be replayed in evaluations, too, and its record "
        "of them is one for all models of a process"
    ),
    "full_iteration": (
        "a replay of the whole iteration leaves out what this loop does in between: reading data, "
        "the hang watch's phases, the check that every parameter gets a gradient"
    ),
}
_OLD_NAMES = ("enable_cuda_graph", "external_cuda_graph")
_SCOPES = ("cuda_graph_modules", "cuda_graph_scope")
"""Newer and older name of the same setting; the newer release has both."""
_PARTS = {"attn": {"core_attn", "mla_up_proj", "layernorm"}, "mlp": {"mlp", "layernorm"}}
"""What can be recorded by itself, and the recomputed modules in it."""

_EXCLUDED: dict[str, str] = {
    "num_moe_experts": "how many tokens an expert gets is not known when it is recorded",
    "tp_comm_overlap": "whether shared buffers can be recorded is not known",
    "cpu_offloading": "copies to the host cannot be recorded",
    "fine_grained_activation_offloading": "copies to the host cannot be recorded",
    "delay_wgrad_compute": "it is not supported",
    "overlap_moe_expert_parallel_comm": "it is not supported",
    "fp32_residual_connection": "the first layer's FP32 input would be rounded to BF16",
}
"""Settings that do not go together with graphs, and why."""


def wanted(cfg: RunConfig) -> bool:
    """Whether a run replays CUDA graphs."""
    return str(cfg.transformer.cuda_graph_impl) != "none"


def check(cfg: RunConfig) -> list[str]:
    """Return what is refused; what does nothing is added to the notices."""
    impl = str(cfg.transformer.cuda_graph_impl)
    if old := [flag_of(name) for name in _OLD_NAMES if cfg.get(name)]:
        return [f"{' and '.join(old)}: megatron-core's older names; use {_THIS}"]
    if not wanted(cfg):
        cfg.notices += [
            f"{flag_of(name)} has no effect without --cuda-graph-impl"
            for name in OPTIONS
            if name.startswith("cuda_graph_") and name in cfg.given and cfg.is_chosen(name)
            if name != "cuda_graph_impl" and cfg.get(name) != OPTIONS[name].default
        ]
        return []
    parts, flag = _parts(cfg)
    if impl == "local" and "full_iteration" in parts:
        impl = "full_iteration"
    if impl != "transformer_engine":
        return [f"--cuda-graph-impl {impl}: {_OTHERS[impl]}; use {_THIS}, or leave it out"]
    if unknown := sorted(parts - {*_PARTS, "full"}):
        return [f"{flag} {' '.join(unknown)}: use full, or attn or mlp or both"]
    name = "cuda_graph_use_single_mempool"
    if name in cfg.given and cfg.is_chosen(name):
        cfg.notices.append(f"{flag_of(name)} has no effect with {_THIS}, which has one pool anyway")
    return _machine(cfg) + _combinations(cfg) + _recompute(cfg, parts)


def _parts(cfg: RunConfig) -> tuple[set[str], str]:
    """What of each layer is recorded, and the flag that says so; `full` for all of it."""
    for name in _SCOPES:
        value: Any = cfg.get(name) if name in OPTIONS else None
        if value and value != "full":
            names = value.split(",") if isinstance(value, str) else value
            return {str(getattr(part, "name", part)) for part in names}, flag_of(name)
    return {"full"}, "--cuda-graph-scope"


def _machine(cfg: RunConfig) -> list[str]:
    planning = cfg.runtime.count_parameters or cfg.runtime.print_config
    if not planning and not availability.on_gpu(cfg):
        return [f"{_THIS}: needs a GPU; leave it out"]
    if availability.transformer_impl(cfg) == "local":
        return [
            f"{_THIS}: a replay gets an empty mask, which Transformer Engine's causal attention "
            "ignores and the torch-native one would follow into the future; needs "
            "--transformer-impl transformer_engine, and the package for it"
        ]
    expandable = any(
        "expandable_segments:True" in os.environ.get(name, "")
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    )
    if expandable and os.environ.get("NCCL_GRAPH_REGISTER") != "0":
        return [
            f"{_THIS}: with expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF, NCCL would read "
            "memory that has moved; export NCCL_GRAPH_REGISTER=0"
        ]
    return []


def _combinations(cfg: RunConfig) -> list[str]:
    t = cfg.transformer
    problems = [
        f"{flag_of(name)} with {_THIS}: {why}; drop one"
        for name, why in _EXCLUDED.items()
        if name in OPTIONS and cfg.get(name)
    ]
    if t.context_parallel_size > 1:
        problems.append(
            f"--context-parallel-size {t.context_parallel_size} with {_THIS}: the exchange inside "
            "of attention has not been shown to be replayed right; use 1 (data, tensor and "
            "pipeline parallelism are fine)"
        )
    if not t.bf16:
        problems.append(f"{_THIS}: megatron-core records layers with BF16 input; use --bf16")
    if t.cuda_graph_warmup_steps < 1:
        problems.append(
            f"--cuda-graph-warmup-steps {t.cuda_graph_warmup_steps}: the first step checks that "
            "every parameter gets a gradient, which a replay would not show; use at least 1"
        )
    if t.pipeline_model_parallel_size > 1 and cfg.training.rampup_batch_size:
        problems.append(
            f"--rampup-batch-size with {_THIS} and pipeline stages: each micro-batch of a step has "
            "a graph of its own, so that their number must stay; drop one"
        )
    return problems


def _recompute(cfg: RunConfig, parts: set[str]) -> list[str]:
    t = cfg.transformer
    if t.recompute_granularity == "full":
        return [
            f"--recompute-granularity full with {_THIS}: whole layers are either replayed or "
            "recomputed; use --recompute-granularity selective, or drop one"
        ]
    recorded = set().union(*(_PARTS[part] for part in (parts if "full" not in parts else _PARTS)))
    both = sorted(recorded & set(t.recompute_modules or ["core_attn"]))
    if t.recompute_granularity == "selective" and both:
        return [
            f"--recompute-modules {' '.join(both)} with {_THIS}: nobody has checked a recompute "
            "inside a recording; record the other part with --cuda-graph-scope attn or mlp"
        ]
    return []
