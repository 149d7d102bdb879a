"""What the installed packages and this machine can do, found without starting CUDA."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig


@functools.cache
def importable(module: str) -> bool:
    """Whether a top-level module can really be imported (a broken binary counts as absent)."""
    if importlib.util.find_spec(module) is None:
        return False
    try:
        importlib.import_module(module)
    except Exception:
        return False
    return True


def on_gpu(cfg: RunConfig) -> bool:
    """Whether the run will use GPUs."""
    return cfg.runtime.device == "cuda" or (
        cfg.runtime.device == "auto" and torch.cuda.is_available()
    )


def transformer_impl(cfg: RunConfig) -> str:
    """Return ``transformer_engine`` or ``local``: what ``auto`` stands for on this machine."""
    if cfg.model.transformer_impl != "auto":
        return cfg.model.transformer_impl
    return "transformer_engine" if _has_te(cfg) else "local"


def _has_te(cfg: RunConfig) -> bool:
    return on_gpu(cfg) and importable("transformer_engine")


def missing_for(field: str, cfg: RunConfig) -> str | None:
    """Return what a fusion field needs and this machine lacks, or None if it can be on."""
    if not on_gpu(cfg):
        return "a GPU"
    if field == "apply_rope_fusion" and not importable("transformer_engine"):
        return "the package transformer-engine"
    if field == "persist_layer_norm" and not importable("apex"):
        return "NVIDIA's apex"
    if field == "masked_softmax_fusion" and not importable("scaled_masked_softmax_cuda"):
        return "NVIDIA's apex (its scaled_masked_softmax_cuda extension)"
    if field == "gradient_accumulation_fusion" and not importable("fused_weight_gradient_mlp_cuda"):
        return "NVIDIA's apex (its fused_weight_gradient_mlp_cuda extension)"
    return None
