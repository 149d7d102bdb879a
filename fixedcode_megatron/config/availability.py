"""What the installed packages and this machine can do, found without starting CUDA."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import re
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig


def importable(module: str) -> bool:
    """Whether a top-level module can really be imported (a broken binary counts as absent)."""
    return importlib.util.find_spec(module) is not None and breakage(module) is None


@functools.cache
def breakage(module: str) -> str | None:
    """Why an installed top-level module cannot be imported, and for which torch it was built."""
    if importlib.util.find_spec(module) is None:
        return None
    try:
        importlib.import_module(module)
    except Exception as error:
        built_for = _torch_of_build(module)
        return (
            f"{module} is installed but cannot be imported "
            f"({' '.join(f'{type(error).__name__}: {error}'.split())}); it was built for "
            f"{f'torch {built_for}' if built_for else 'another torch or CUDA, it seems'}, here is "
            f"torch {torch.__version__}: reinstall it for this one"
        )
    return None


def _torch_of_build(module: str) -> str | None:
    """The torch release that a package's version (`2.1+cu12torch2.6`) or requirements name."""
    for name in {module, *importlib.metadata.packages_distributions().get(module, [])}:
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for text in (found.version, *(found.requires or [])):
            if match := re.search(r"torch\s*(?:==)?\s*(\d+(?:\.\d+)+)", text):
                return match[1]
    return None


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
        return None if _fuses_on_cpu(field, cfg) else "a GPU"
    if field == "apply_rope_fusion" and not importable("transformer_engine"):
        return "the package transformer-engine"
    if field == "persist_layer_norm" and not importable("apex"):
        return "NVIDIA's apex"
    if field == "masked_softmax_fusion" and not importable("scaled_masked_softmax_cuda"):
        return "NVIDIA's apex (its scaled_masked_softmax_cuda extension)"
    if field == "gradient_accumulation_fusion" and not importable("fused_weight_gradient_mlp_cuda"):
        return "NVIDIA's apex (its fused_weight_gradient_mlp_cuda extension)"
    return None


def _fuses_on_cpu(field: str, cfg: RunConfig) -> bool:
    """Whether `cpu_operations` has what a fusion field asks for."""
    if field == "bias_activation_fusion":
        return cfg.model.swiglu
    return field == "gradient_accumulation_fusion" and not (cfg.get("bf16") or cfg.get("fp16"))
