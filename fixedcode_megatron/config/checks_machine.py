"""Checks of what needs a GPU, Transformer Engine or apex."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fixedcode_megatron.config import availability
from fixedcode_megatron.config.aliases import usual_flag
from fixedcode_megatron.config.megatron_fields import AUTO
from fixedcode_megatron.config.options import flag_of
from fixedcode_megatron.config.tree import OPTIONS

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig

_TE = "the package transformer-engine[pytorch], version 2.1 or newer, on a Hopper or newer GPU"


_WITHOUT_LOCAL = (
    "cpu_offloading",
    "delay_wgrad_compute",
    "fine_grained_activation_offloading",
    "fp4",
    "fp8",
    "moe_grouped_gemm",
    "tp_comm_overlap",
    "use_kitchen",
    "use_precision_aware_optimizer",
    "use_te_activation_func",
    "use_te_rng_tracker",
    "use_transformer_engine_op_fuser",
    "window_size",
)
"""Options that the torch-native layers do not have."""


def check(cfg: RunConfig) -> list[str]:
    """Return what was asked for and cannot be had here."""
    t, problems = cfg.transformer, []
    planning = cfg.runtime.count_parameters or cfg.runtime.print_config
    if t.fp16 and t.bf16:
        problems.append("--fp16 and --bf16 exclude each other: drop one")
    if not planning:
        problems += _fusions(cfg) + _needs(cfg)
    if t.fp8:
        problems += _fp8_multiples(cfg)
    if (
        availability.on_gpu(cfg)
        and t.tensor_model_parallel_size * t.context_parallel_size > 1
        and os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1"
    ):
        cfg.notices.append(
            "export CUDA_DEVICE_MAX_CONNECTIONS=1 before the start: with it, the communication of "
            "tensor and context parallel ranks overlaps with computation as it should"
        )
    return problems


def _fusions(cfg: RunConfig) -> list[str]:
    problems = []
    for name in sorted(AUTO):
        if getattr(cfg.transformer, name) and (lack := availability.missing_for(name, cfg)):
            problems.append(
                f"{flag_of(name)}: needs {lack}; leave it out and it is on wherever it can be"
            )
    return problems


def _needs(cfg: RunConfig) -> list[str]:
    t, problems = cfg.transformer, []
    local = availability.transformer_impl(cfg) == "local"
    broken = availability.breakage("transformer_engine")
    te = availability.importable("transformer_engine")
    if cfg.model.transformer_impl == "transformer_engine" and not te:
        problems.append(f"--transformer-impl transformer_engine: {broken or f'needs {_TE}'}")
    elif broken and cfg.model.transformer_impl == "auto" and availability.on_gpu(cfg):
        cfg.notices.append(f"layers are torch-native: {broken}")
    fused_by_te = t.cross_entropy_loss_fusion and t.cross_entropy_fusion_impl == "te"
    if fused_by_te and not te and not cfg.model.fused_linear_cross_entropy:
        problems.append(f"--cross-entropy-fusion-impl te: needs {_TE}")
    if cfg.ddp.nccl_ub and not availability.on_gpu(cfg):
        problems.append("--nccl-ub: needs GPUs; leave it out")
    if cfg.optimizer.optimizer_cpu_offload and not cfg.optimizer.use_precision_aware_optimizer:
        problems.append("--optimizer-cpu-offload: needs --use-precision-aware-optimizer")
    if t.tp_comm_overlap and not t.sequence_parallel:
        problems.append("--tp-comm-overlap: needs --sequence-parallel")
    if t.tp_comm_overlap and not (t.bf16 or t.fp16):
        problems.append("--tp-comm-overlap: needs --bf16 (or --fp16)")
    if cfg.runtime.tp_comm_overlap_cfg and not t.tp_comm_overlap:
        problems.append("--tp-comm-overlap-cfg: has no effect without --tp-comm-overlap")
    if t.fp16 and not availability.on_gpu(cfg):
        problems.append("--fp16: needs a GPU; use --bf16, or neither for FP32")
    if local:
        wanted = [name for name in _WITHOUT_LOCAL if name in OPTIONS and cfg.get(name)]
        problems += [f"{usual_flag(name)}: needs {_TE}" for name in wanted]
        if cfg.is_chosen("attention_backend"):
            cfg.notices.append(
                "--attention-backend has no effect on torch-native layers: PyTorch chooses"
            )
    return problems


def _fp8_multiples(cfg: RunConfig) -> list[str]:
    """FP8 products need rows in multiples of 8, columns in multiples of 16 (MXFP8: 32)."""
    t, problems = cfg.transformer, []
    tp, mxfp8 = t.tensor_model_parallel_size, t.fp8_recipe == "mxfp8"
    rows, columns = (32, 32) if mxfp8 else (8, 16)
    tokens = cfg.model.seq_length * cfg.training.micro_batch_size // t.context_parallel_size
    shards = {
        f"--hidden-size {t.hidden_size}": (t.hidden_size, 1, columns),
        f"--ffn-hidden-size {t.ffn_hidden_size}": (t.ffn_hidden_size, tp, columns),
        "heads times --kv-channels": (t.num_attention_heads * t.kv_channels, tp, columns),
        f"--seq-length times --micro-batch-size, {tokens}": (
            tokens,
            tp if t.sequence_parallel else 1,
            rows,
        ),
    }
    for what, (size, parts, multiple) in shards.items():
        if size % (parts * multiple):
            problems.append(
                f"{what}: with --fp8-format and {t.fp8_recipe} scaling each rank's share must be a "
                f"multiple of {multiple}; use a multiple of {parts * multiple}"
            )
    return problems
