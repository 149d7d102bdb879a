"""Checks of ``--optimizer muon``: what it needs, and what megatron-core does not combine it with.

Muon updates the matrices inside the layers; norms, biases, the head and an input interface's table
are left to Adam.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
from typing import TYPE_CHECKING, Any

import megatron.core

from fixedcode_megatron.config.options import flag_of

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig

_MODULE = "megatron.core.optimizer.emerging_optimizers"

_TESTED = "0.3.0"

_CHOICES = {
    "muon_fp32_matmul_prec": ("highest", "high", "medium"),
    "muon_scale_mode": ("spectral", "unit_rms_norm", "shape_scaling"),
    "muon_tp_mode": ("blockwise", "duplicated", "distributed"),
}


def check(cfg: RunConfig) -> list[str]:
    """Return what speaks against Muon in this run, nothing where it was not asked for."""
    if cfg.optimizer.optimizer != "muon":
        return []
    lacks = missing()
    if lacks is not None:
        return [f"--optimizer muon: {lacks}"]
    return _values(cfg) + _combinations(cfg)


def missing() -> str | None:
    """Return what Muon needs and this environment lacks, or None."""
    if importlib.util.find_spec(_MODULE) is None:
        return (
            f"megatron-core {megatron.core.__version__} calls the package emerging-optimizers as "
            "it was before 0.2; use megatron-core 0.19 or newer, adam or sgd"
        )
    if not importlib.import_module(_MODULE).HAVE_EMERGING_OPTIMIZERS:
        return (
            f"needs the package emerging-optimizers (pip install emerging-optimizers=={_TESTED}), "
            f"which is for Python 3.12 or newer (here is {platform.python_version()}); else use "
            "adam or sgd"
        )
    return None


def _values(cfg: RunConfig) -> list[str]:
    options: Any = cfg.optimizer
    coefficients = importlib.import_module(_MODULE).get_supported_coefficient_types()
    known = _CHOICES | {
        "muon_coefficient_type": tuple(name for name in coefficients if name != "custom")
    }
    problems = [
        f"{flag_of(name)} {getattr(options, name)}: must be one of {', '.join(values)}"
        for name, values in known.items()
        if getattr(options, name) not in values
    ]
    if not 0 <= options.muon_momentum < 1:
        problems.append(f"--muon-momentum {options.muon_momentum}: must be at least 0 and below 1")
    if options.muon_num_ns_steps < 1:
        problems.append(f"--muon-num-ns-steps {options.muon_num_ns_steps}: must be at least 1")
    return problems


def _combinations(cfg: RunConfig) -> list[str]:
    options, t, problems = cfg.optimizer, cfg.transformer, []
    refused = {
        "--use-distributed-optimizer: megatron-core shares out adam's state alone": (
            cfg.ddp.use_distributed_optimizer
        ),
        "--fp16: megatron-core has no loss scale for it; use --bf16": t.fp16,
        "--fp8-param-gather: the weights must be BF16 or FP32": t.fp8_param,
        "--optimizer-cpu-offload: megatron-core offloads adam's state alone": (
            options.optimizer_cpu_offload
        ),
        "--no-decoupled-weight-decay: Muon's is always decoupled": (
            not options.decoupled_weight_decay
        ),
    }
    problems += [f"--optimizer muon with {why}" for why, asked in refused.items() if asked]
    ranks = max(t.tensor_model_parallel_size, t.expert_tensor_parallel_size or 1)
    if ranks > 1 and options.muon_tp_mode == "blockwise":
        problems.append(
            "--muon-tp-mode blockwise: orthogonalises each tensor-parallel rank's block by itself, "
            "which no other layout does; use --muon-tp-mode duplicated or distributed"
        )
    return problems
