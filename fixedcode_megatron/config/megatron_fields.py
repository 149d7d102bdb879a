"""Sections made from the installed megatron-core, and megatron-core's own objects made from them.

`TransformerConfig`, `DistributedDataParallelConfig` and `OptimizerConfig` differ from release to
release, so their fields are read when this module is imported. Left out are fields that cannot
come from a command line (callables, timers, process groups), those worked out from others
(`DERIVED`), and those of model families this project does not train (`aliases.REFUSED_PREFIXES`).
"""

from __future__ import annotations

import dataclasses
import typing
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from megatron.core.activations import squared_relu
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import TransformerConfig

from fixedcode_megatron.config import availability
from fixedcode_megatron.config.aliases import refused_prefix
from fixedcode_megatron.config.options import DTYPES, Option, Unsupported, option_of

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig

MEGATRON_SECTIONS: dict[str, type] = {
    "transformer": TransformerConfig,
    "ddp": DistributedDataParallelConfig,
    "optimizer": OptimizerConfig,
}

DERIVED = frozenset(
    {
        "activation_func",
        "autocast_dtype",
        "check_for_large_grads",  # ours leaves out the update, at no wait for the device
        "deallocate_pipeline_outputs",
        "enable_autocast",
        "gated_linear_unit",
        "init_model_with_meta_device",
        "params_dtype",
        "pipeline_dtype",
        "test_mode",
        "timers",
        "transformer_impl",
        "use_cpu_initialization",
        "variable_seq_lengths",
    }
)
"""Fields worked out from others, so that one setting has one flag."""

AUTO = frozenset(
    {
        "apply_rope_fusion",
        "bias_activation_fusion",
        "bias_dropout_fusion",
        "gradient_accumulation_fusion",
        "masked_softmax_fusion",
        "persist_layer_norm",
    }
)
"""Fusions: ``None`` in the tree means on where the machine can, as Megatron-LM's defaults are."""


def _fields_of(section: str, cls: type) -> list[tuple[Option, Any]]:
    """Return the options of a megatron-core dataclass with their annotations."""
    hints = typing.get_type_hints(cls)
    options = []
    for f in dataclasses.fields(cls):
        if f.name.startswith("_") or not f.init or f.name in DERIVED or refused_prefix(f.name):
            continue
        try:
            opt = option_of(f, hints[f.name], section)
        except Unsupported:
            continue
        if f.name in AUTO:
            opt = dataclasses.replace(opt, default=None, optional=True, auto=True)
        elif isinstance(opt.default, AttnBackend):
            opt = dataclasses.replace(opt, default=opt.default.name)
        elif isinstance(opt.default, torch.dtype):
            opt = dataclasses.replace(opt, default=_dtype_name(opt.default))
        options.append((opt, hints[f.name]))
    return options


def _dtype_name(dtype: torch.dtype) -> str:
    return next(name for name, value in DTYPES.items() if value == dtype)


def _make_section(name: str, section: str, cls: type) -> tuple[type, list[Option]]:
    """Return a keyword-only dataclass with megatron-core's names and defaults, and its options."""
    options = [opt for opt, _ in _fields_of(section, cls)]
    fields = []
    for opt in options:
        default = opt.default
        factory = (lambda d=default: list(d)) if isinstance(default, list) else None
        spec: Any = (
            dataclasses.field(default_factory=factory)
            if factory
            else dataclasses.field(default=default)
        )
        fields.append((opt.name, Any, spec))
    made = dataclasses.make_dataclass(name, fields, kw_only=True)
    made.__module__ = __name__  # where pickle looks for it
    made.__doc__ = f"Fields of megatron-core's {cls.__name__}."
    return made, options


TransformerFields, TRANSFORMER_OPTIONS = _make_section(
    "TransformerFields", "transformer", TransformerConfig
)
DDPFields, DDP_OPTIONS = _make_section("DDPFields", "ddp", DistributedDataParallelConfig)
OptimizerFields, OPTIMIZER_OPTIONS = _make_section("OptimizerFields", "optimizer", OptimizerConfig)


def params_dtype(cfg: RunConfig) -> torch.dtype:
    """Return the dtype of the parameters: BF16, FP16 or FP32."""
    if cfg.transformer.bf16:
        return torch.bfloat16
    return torch.float16 if cfg.transformer.fp16 else torch.float32


def _values(section: Any, options: list[Option]) -> dict[str, Any]:
    return {opt.name: getattr(section, opt.name) for opt in options}


def _keep_known(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """Drop values for fields this release of megatron-core does not have."""
    names = {f.name for f in dataclasses.fields(cls)}
    return {name: value for name, value in values.items() if name in names}


def fusions(cfg: RunConfig) -> dict[str, bool]:
    """Resolve the ``auto`` fields: the given value, else on where the machine can."""
    resolved = {}
    for opt in TRANSFORMER_OPTIONS:
        if not opt.auto:
            continue
        given = getattr(cfg.transformer, opt.name)
        resolved[opt.name] = availability.missing_for(opt.name, cfg) is None and (
            _fusion_applies(opt.name, cfg) if given is None else given
        )
    return resolved


def _fusion_applies(name: str, cfg: RunConfig) -> bool:
    """Whether a fusion fits the model: megatron-core refuses some combinations."""
    if name == "bias_activation_fusion":
        gelu_with_bias = not cfg.model.squared_relu and cfg.transformer.add_bias_linear
        return cfg.model.swiglu or gelu_with_bias
    if name == "apply_rope_fusion":
        return cfg.model.position_embedding_type == "rope"
    return True


def transformer_config(cfg: RunConfig, **derived: Any) -> TransformerConfig:
    """Build megatron-core's `TransformerConfig`.

    Parameters
    ----------
    cfg
        The resolved tree.
    derived
        Further values that win over the tree's (hooks, initialisers).
    """
    dtype = params_dtype(cfg)
    values = _values(cfg.transformer, TRANSFORMER_OPTIONS) | fusions(cfg)
    values["attention_backend"] = AttnBackend[values["attention_backend"]]
    values |= {
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "autocast_dtype": dtype,
        # Freed at once on a CPU, where interleaved stages send them in the background: what arrives
        # would be whatever the memory holds by then. A GPU's allocator waits for the send.
        "deallocate_pipeline_outputs": availability.on_gpu(cfg),
        "gated_linear_unit": cfg.model.swiglu,
        "activation_func": _activation(cfg),
        "transformer_impl": availability.transformer_impl(cfg),
    }
    return TransformerConfig(**_keep_known(TransformerConfig, values | derived))


def _activation(cfg: RunConfig) -> Any:
    if cfg.model.swiglu:
        return F.silu
    return squared_relu if cfg.model.squared_relu else F.gelu


def ddp_config(cfg: RunConfig) -> DistributedDataParallelConfig:
    """Build megatron-core's `DistributedDataParallelConfig`."""
    return DistributedDataParallelConfig(**_values(cfg.ddp, DDP_OPTIONS))


def optimizer_config(cfg: RunConfig) -> OptimizerConfig:
    """Build megatron-core's `OptimizerConfig`; learning rates are per step of the optimizer."""
    values = _values(cfg.optimizer, OPTIMIZER_OPTIONS)
    for name, value in values.items():
        if name.endswith("_dtype") and value is not None:
            values[name] = DTYPES[value]
    values["params_dtype"] = params_dtype(cfg)
    return OptimizerConfig(**_keep_known(OptimizerConfig, values))
