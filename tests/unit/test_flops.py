"""Model FLOPs by hand, and the table of peaks."""

import pytest
from megatron.core.transformer.transformer_config import TransformerConfig

from fixedcode_megatron.training.flops import ModelShape, model_shape
from fixedcode_megatron.training.peaks import peak_flops


def shape(**changes):
    fields = dict(
        num_layers=2,
        hidden_size=64,
        ffn_hidden_size=256,
        num_attention_heads=4,
        num_query_groups=4,
        kv_channels=16,
        gated_linear_unit=False,
        vocab_size=1000,
        seq_length=128,
    )
    return ModelShape(**(fields | changes))


def test_the_published_formula():
    """72 L h^2 (1 + s / 6h + V / 12Lh), full attention, no recomputation, no input table."""
    assert shape().flops_per_token == 1_170_432
    assert 72 * 2 * 64**2 * (1 + 128 / (6 * 64) + 1000 / (12 * 2 * 64)) == 1_170_432


def test_grouped_query_attention_and_swiglu_by_hand():
    # One layer, forward, multiply-adds: qkv 64 * (64 + 2 * 16), proj 64 * 64, scores and context
    # 2 * 64 * 128, three matrices of 64 * 256; head 64 * 1000.
    layer = 64 * 96 + 64 * 64 + 2 * 64 * 128 + 3 * 64 * 256
    expected = 3 * 2 * (2 * layer + 64 * 1000)
    assert shape(num_query_groups=1, gated_linear_unit=True).flops_per_token == expected


def test_a_mixture_of_experts_counts_what_a_token_passes_through():
    # Layer 2 has 8 experts of 100 of which 2 are chosen, one shared of 50, and a router.
    found = shape(
        num_moe_layers=1,
        num_experts=8,
        experts_per_token=2,
        expert_ffn_hidden_size=100,
        shared_expert_ffn_hidden_size=50,
    )
    dense, mixture = 2 * 64 * 256, 2 * 64 * (2 * 100 + 50) + 64 * 8
    assert found.flops_per_token == 1_170_432 - 3 * 2 * (dense - mixture)


@pytest.mark.parametrize("freq, mixtures", [(1, 4), (2, 2), ([0, 1, 1, 1], 3)])
def test_the_shape_of_a_mixture_is_read_from_megatron_cores_configuration(freq, mixtures):
    config = TransformerConfig(
        num_layers=4,
        hidden_size=64,
        num_attention_heads=4,
        num_moe_experts=8,
        moe_router_topk=3,
        moe_ffn_hidden_size=96,
        moe_shared_expert_intermediate_size=32,
        moe_layer_freq=freq,
        add_bias_linear=False,
    )
    found = model_shape(config, vocab_size=1000, seq_length=128)
    assert (found.num_moe_layers, found.num_experts, found.experts_per_token) == (mixtures, 8, 3)
    assert (found.expert_ffn_hidden_size, found.shared_expert_ffn_hidden_size) == (96, 32)


@pytest.mark.parametrize(
    "name, bf16, fp8",
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12, 1978.9e12),
        ("NVIDIA H100 PCIe", 756.5e12, 1513e12),
        ("NVIDIA H100 NVL", 835.5e12, 1670.5e12),
        ("NVIDIA H200", 989.4e12, 1978.9e12),
        ("NVIDIA B200", 2250e12, 4500e12),
        ("NVIDIA A100-SXM4-80GB", 312e12, None),
        ("NVIDIA L40S", 362.05e12, 733e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, None),
        ("NVIDIA RTX A1000", None, None),
        ("NVIDIA GeForce RTX 4090", None, None),
        ("cpu", None, None),
    ],
)
def test_peaks_are_known_or_not_given(name, bf16, fp8):
    assert peak_flops(name, "bf16") == bf16
    assert peak_flops(name, "fp8") == fp8
    assert peak_flops(name, None) is None
