"""First-layer folding computes the same function and the same gradients as the unfolded layer."""

from __future__ import annotations

import pytest
import torch

from tests.distributed import cases
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

CODES = {
    "gf2": "--input-interface gf2",
    "interleaved": "--input-interface binary --code-lift interleave",
    "plus-minus-one": "--input-interface binary --code-scale 2 --code-offset -1",
    "random": "--input-interface random",
}
NORMS = {
    "RMSNorm": "--normalization RMSNorm",
    "zero-centered": "--normalization RMSNorm --layernorm-zero-centered-gamma",
    "LayerNorm-bias": "--normalization LayerNorm --add-bias-linear",
}
LAYOUTS = {
    "one": (1, ""),
    "tp2": (2, "--tensor-model-parallel-size 2"),
    "tp2-sp": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert value.dtype == torch.float64
        scale = value.abs().max()
        assert scale > 0, name
        assert torch.allclose(found[name], value, rtol=0, atol=float(1e-12 * scale)), name


def with_norms_summed(results):
    """What megatron-core makes of the norms' gradients under sequence parallelism: their sum.

    Which rank holds which part of it after backward is each layer's own affair.
    """
    totals = {
        name: sum(result[name] for result in results) for name in results[0] if "layer_norm" in name
    }
    return [result | totals for result in results]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("code", CODES)
def test_outputs_and_gradients_in_fp64(base_flags, code, norm, layout):
    ranks, parallel = LAYOUTS[layout]
    flags = [*base_flags, *CODES[code].split(), *NORMS[norm].split(), *parallel.split()]
    expected = run_ranks(ranks, cases.first_projection, flags)
    for hand_over in (False, True):
        folded = [*flags, "--fold-first-layer"]
        found = run_ranks(ranks, cases.first_projection, folded, hand_over=hand_over)
        if layout == "tp2-sp":
            found, wanted = with_norms_summed(found), with_norms_summed(expected)
        else:
            wanted = expected
        for one_found, one_wanted in zip(found, wanted, strict=True):
            assert_equal(one_found, one_wanted)


@pytest.mark.parametrize(
    "ranks, flags",
    [
        (1, ""),
        (2, "--tensor-model-parallel-size 2"),
        (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
        (2, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"),
        (
            4,
            "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 "
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        ),
        (
            4,
            "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout E|tt|tt|L "
            "--use-distributed-optimizer",
        ),
    ],
    ids=["one", "tp2", "tp2-sp", "dp2-overlap", "tp2-sp-pp2-recompute", "interface-alone"],
)
@pytest.mark.parametrize("interface", ["binary", "gf2"])
def test_twenty_iterations_agree_with_the_unfolded_run(train, reference, interface, ranks, flags):
    run = train(f"--input-interface {interface} --fold-first-layer {flags}", ranks=ranks)
    assert run.losses == pytest.approx(reference(interface).losses, abs=1e-5)
    norms = reference(interface).column("grad norm")
    assert run.column("grad norm") == pytest.approx(norms, abs=1e-5)


def test_layer_one_needs_no_collective_under_sequence_parallel(base_flags):
    flags = [*base_flags, "--input-interface", "gf2", "--tensor-model-parallel-size", "2"]
    flags += ["--sequence-parallel"]
    plain = run_ranks(2, cases.collectives_of_a_step, flags)[0]
    folded = run_ranks(2, cases.collectives_of_a_step, [*flags, "--fold-first-layer"])[0]
    # Forward gathers x; backward gathers it again for the weight and scatters x's gradient.
    assert plain["all_gather_into_tensor"] - folded["all_gather_into_tensor"] == 2
    assert plain["reduce_scatter_tensor"] - folded["reduce_scatter_tensor"] == 1
    assert plain.get("all_reduce") == folded.get("all_reduce")


def test_parameters_keep_their_names_and_shapes(base_flags):
    flags = [*base_flags, "--input-interface", "gf2"]
    [plain] = run_ranks(1, cases.state_summary, flags)
    [folded] = run_ranks(1, cases.state_summary, [*flags, "--fold-first-layer"])
    assert folded["parameters"] == plain["parameters"]
    assert folded["keys"] == plain["keys"]


@pytest.mark.parametrize(
    "flags, reason",
    [
        ("--input-interface learned", "--input-interface learned is trained"),
        ("--input-interface lowdim", "--input-interface lowdim is trained"),
        (
            "--input-interface gf2 --hidden-size 80 --code-allow-partial-tile",
            "--hidden-size 80 is not a multiple of the code width 9",
        ),
        ("--input-interface gf2 --hidden-dropout 0.1", "--hidden-dropout 0.1"),
    ],
)
def test_refused_where_it_does_not_apply(train, flags, reason):
    run = train(f"{flags} --fold-first-layer")
    text = (run.folder / "rank0.log").read_text()
    assert run.status == 2
    assert "--fold-first-layer does not apply" in text
    assert reason in text
    assert "Traceback" not in text
