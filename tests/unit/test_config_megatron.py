"""Sections made from the installed megatron-core, and its own objects made from them."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.transformer_config import TransformerConfig

from fixedcode_megatron.config import availability, parse_args
from fixedcode_megatron.config.derive import on_one_rank
from fixedcode_megatron.config.docstrings import field_docs
from fixedcode_megatron.config.megatron_fields import (
    AUTO,
    DERIVED,
    ddp_config,
    optimizer_config,
    transformer_config,
)
from fixedcode_megatron.config.tree import OPTIONS

MINIMAL = [
    *("--num-layers=2", "--hidden-size=64", "--num-attention-heads=4", "--train-iters=5"),
    *("--lr=1e-3", "--data-path=some/prefix", "--vocab-size=256"),
]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(availability, "on_gpu", lambda cfg: False)


def test_defaults_are_megatron_cores():
    cfg = parse_args(MINIMAL)
    size = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    pairs = [
        (transformer_config(cfg), TransformerConfig(**size)),
        (ddp_config(cfg), DistributedDataParallelConfig()),
        (optimizer_config(cfg), OptimizerConfig()),
    ]
    # Resolved here, given above, shared between sections under one default, or Megatron-LM's.
    shared = {"barrier_with_L1_time", "fp8_recipe", "min_lr"}
    own = DERIVED | AUTO | set(cfg.given) | shared
    for ours, theirs in pairs:
        for field in dataclasses.fields(theirs):
            default = getattr(theirs, field.name)
            if field.name not in own and not callable(default):
                assert getattr(ours, field.name) == default, field.name


def test_every_plain_field_is_offered_or_refused():
    from fixedcode_megatron.config.aliases import refused_prefix

    for cls in (TransformerConfig, DistributedDataParallelConfig, OptimizerConfig):
        for field in dataclasses.fields(cls):
            plain = field.type in (bool, int, float, str)
            if plain and field.name not in DERIVED:
                assert field.name in OPTIONS or refused_prefix(field.name), field.name


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [([], torch.float32), (["--bf16"], torch.bfloat16)],
)
def test_dtypes_follow_the_precision(flags, dtype):
    cfg = parse_args([*MINIMAL, *flags])
    t = transformer_config(cfg)
    assert t.params_dtype == t.pipeline_dtype == t.autocast_dtype == dtype
    assert optimizer_config(cfg).params_dtype == dtype
    assert ddp_config(cfg).grad_reduce_in_fp32 == (dtype == torch.bfloat16)


def test_activations():
    assert transformer_config(parse_args(MINIMAL)).activation_func is F.gelu
    gated = transformer_config(parse_args([*MINIMAL, "--swiglu"]))
    assert gated.activation_func is F.silu and gated.gated_linear_unit
    squared = transformer_config(parse_args([*MINIMAL, "--squared-relu"]))
    assert squared.activation_func(torch.tensor([-1.0, 3.0])).tolist() == [0.0, 9.0]


def test_default_mlp_widths_are_megatrons():
    assert parse_args(MINIMAL).transformer.ffn_hidden_size == 256  # 4 * 64
    # 4 * 64 * 2 / 3 = 170.67, down to a multiple of 64
    assert parse_args([*MINIMAL, "--swiglu"]).transformer.ffn_hidden_size == 128


def test_fusions_are_off_where_they_cannot_be_on(monkeypatch):
    cfg = parse_args(MINIMAL)
    config = transformer_config(cfg)
    assert [name for name in AUTO if getattr(config, name)] == ["gradient_accumulation_fusion"]
    in_bf16 = transformer_config(parse_args([*MINIMAL, "--bf16"]))
    assert not any(getattr(in_bf16, name) for name in AUTO)
    monkeypatch.setattr(availability, "on_gpu", lambda cfg: True)
    monkeypatch.setattr(availability, "importable", lambda module: module == "transformer_engine")
    from fixedcode_megatron.config.megatron_fields import fusions

    found = {name for name, on in fusions(cfg).items() if on}
    assert found == {"apply_rope_fusion", "bias_activation_fusion", "bias_dropout_fusion"}
    off = parse_args([*MINIMAL, "--no-rope-fusion", "--disable-bias-linear"])
    found = {name for name, on in fusions(off).items() if on}
    assert found == {"bias_dropout_fusion"}  # GELU is fused with a bias only


def test_derived_values_can_be_overridden():
    cfg = parse_args(MINIMAL)
    assert transformer_config(cfg, num_layers=7, pipeline_dtype=torch.float16).num_layers == 7


def test_the_whole_model_of_any_layout_fits_one_rank():
    layout = [
        *("--tensor-model-parallel-size=2", "--pipeline-model-parallel-size=2"),
        *("--virtual-pipeline-model-parallel-size=2", "--num-layers=4", "--sequence-parallel"),
        "--global-batch-size=2",
    ]
    cfg = parse_args([*MINIMAL, *layout], world_size=4)
    on_one_rank(cfg)
    t = transformer_config(cfg)  # megatron-core refuses sequence parallel at TP 1, for one
    assert t.tensor_model_parallel_size == t.pipeline_model_parallel_size == 1
    assert t.virtual_pipeline_model_parallel_size is None


def test_optimizer_state_types_by_name():
    cfg = parse_args(MINIMAL)
    assert cfg.optimizer.exp_avg_dtype == "fp32"
    assert optimizer_config(cfg).exp_avg_dtype is torch.float32


def test_help_texts_come_from_the_strings_below_fields():
    docs = field_docs(TransformerConfig)
    assert docs["num_layers"].startswith("Number of transformer layers")
    assert docs["tensor_model_parallel_size"]  # of a base class
    assert all(len(text) <= 230 for text in docs.values())
