"""The model's parts: input interfaces, parameter names, recompute, megatron-core's own model."""

from __future__ import annotations

import pytest
import torch

from fixedcode_megatron.codes import TokenCode
from tests.distributed import cases, stock
from tests.distributed.conftest import VOCAB_SIZE
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

RECOMPUTE = {
    "full": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    "block": "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
    "selective": "--recompute-granularity selective",
}


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("interface", ["learned", "binary", "gf2"])
def test_recompute_gives_layer_one_the_same_gradients(base_flags, interface, recompute):
    flags = [*base_flags, "--input-interface", interface]
    [expected] = run_ranks(1, cases.gradients, flags)
    [found] = run_ranks(1, cases.gradients, [*flags, *RECOMPUTE[recompute].split()])
    first_layer = [name for name in expected if ".layers.0." in name]
    assert len(first_layer) == 6  # two norms, qkv, proj, fc1, fc2
    for name in first_layer:
        assert torch.count_nonzero(expected[name]), name
        assert torch.equal(found[name], expected[name]), name


def test_sequence_parallel_ranks_compute_their_own_slice(base_flags):
    """Case 40."""
    ids = [[3, 1, 4, 15, 92, 65, 35, 89]]
    flags = [*base_flags, "--input-interface", "gf2"]
    split = [*flags, "--tensor-model-parallel-size", "2", "--sequence-parallel"]
    parts = run_ranks(2, cases.embedding_output, split, ids)
    code = TokenCode.gf2(VOCAB_SIZE)
    expected = code.table(72)[torch.tensor(ids[0])].unsqueeze(1)  # [s, b, h]
    for rank, part in enumerate(parts):
        assert part.shape == (4, 1, 72)
        assert torch.equal(part, expected[4 * rank : 4 * rank + 4])


@pytest.mark.parametrize("interface", ["learned", "binary"])
def test_sequence_parallel_ranks_drop_other_elements(base_flags, interface):
    """Case 40: the same id everywhere, so that only the mask tells the ranks' slices apart."""
    flags = [*base_flags, "--input-interface", interface, "--hidden-dropout", "0.5"]
    flags += ["--tensor-model-parallel-size", "2", "--sequence-parallel"]
    flags += ["--code-offset", "1.0"] if interface == "binary" else []  # no value is 0
    first, second = run_ranks(2, cases.embedding_output, flags, [[3] * 8])
    assert first.shape == second.shape == (4, 1, 72)
    for part in (first, second):
        assert 0.35 < (part == 0).float().mean() < 0.65
    assert not torch.equal(first == 0, second == 0)


@pytest.mark.parametrize("interface", ["binary", "gf2", "random"])
def test_fixed_interfaces_own_nothing(base_flags, interface):
    flags = [*base_flags, "--input-interface", interface]
    [summary] = run_ranks(1, cases.state_summary, flags)
    held = summary["parameters"] | summary["buffers"]
    assert not [name for name in held if name.startswith("embedding")]
    assert not [key for key in summary["keys"] if "embedding" in key]


def test_parameter_names_and_keys_are_those_of_transformer_engine(base_flags):
    """megatron-core's own map from its plain layers' names to TE's is the independent source."""
    for norm in ("RMSNorm", "LayerNorm"):
        flags = [*base_flags, "--input-interface", "learned", "--normalization", norm]
        [ours] = run_ranks(1, cases.state_summary, flags)
        [stock_keys] = run_ranks(1, stock.sharded_keys, flags)
        assert ours["keys"] == stock_keys
        layer = "decoder.layers.0.self_attention.linear_qkv."
        assert f"{layer}layer_norm_weight" in ours["parameters"]
        assert (f"{layer}layer_norm_bias" in ours["parameters"]) == (norm == "LayerNorm")


def test_learned_equals_a_stock_megatron_core_model_bit_for_bit(train, base_flags):
    """Twenty iterations against megatron-core's GPTModel, layers, optimizer and a bare loop."""
    plain = "--no-fused-linear-cross-entropy --no-gradient-accumulation-fusion"
    run = train(f"--input-interface learned {plain}")
    [losses] = run_ranks(1, stock.train, base_flags, attention="ours")
    assert run.losses == losses
    fused = train("--input-interface learned")
    assert fused.losses == pytest.approx(losses, abs=1e-5)


def test_attention_equals_megatron_cores(train, base_flags):
    run = train("--input-interface learned --num-query-groups 2")
    [losses] = run_ranks(
        1, stock.train, [*base_flags, "--num-query-groups", "2"], attention="megatron"
    )
    assert run.losses == pytest.approx(losses, abs=1e-5)
