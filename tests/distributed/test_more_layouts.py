"""Layouts, masks and model variants beyond the common ones equal one process, too."""

from __future__ import annotations

import pytest
import torch

from tests.distributed import cases
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

SHORT = "--train-iters 6 --lr-warmup-iters 1 --eval-interval 6 --eval-iters 1"
TP2_SP = "--tensor-model-parallel-size 2 --sequence-parallel"
CP2 = "--context-parallel-size 2"
VPP2 = "--pipeline-model-parallel-size 2 --virtual-pipeline-model-parallel-size 2"


def assert_equal_to_one_process(train, flags, ranks, layout, tolerance=1e-5):
    one = train(f"{SHORT} {flags}")
    many = train(f"{SHORT} {flags} {layout}", ranks=ranks)
    assert len(one.losses) == 6
    assert many.losses == pytest.approx(one.losses, abs=tolerance)
    norms = one.column("grad norm")
    assert many.column("grad norm") == pytest.approx(norms, rel=tolerance, abs=tolerance)
    kind = "validation"
    assert many.column("lm loss", kind) == pytest.approx(one.column("lm loss", kind), abs=tolerance)


@pytest.mark.parametrize(
    "ranks, layout",
    [
        pytest.param(4, f"{VPP2} {TP2_SP} --use-distributed-optimizer", id="vpp2-tp2-sp"),
        pytest.param(
            4,
            f"{VPP2} --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
            "--align-param-gather",
            id="vpp2-dp2-overlap",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            2,
            "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1",
            id="pp2-uneven",
        ),
        pytest.param(
            2,
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|t|t|tL",
            id="pp2-layout-of-four",
        ),
        pytest.param(
            2,
            "--pipeline-model-parallel-size 2 --account-for-embedding-in-pipeline-split "
            "--account-for-loss-in-pipeline-split",
            id="pp2-accounted",
            marks=pytest.mark.slow,
        ),
        pytest.param(  # Case 37: an empty group of parameters
            2,
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout E|ttttL "
            "--use-distributed-optimizer",
            id="pp2-input-alone-distributed",
        ),
        pytest.param(
            4,
            f"--pipeline-model-parallel-size 2 {CP2} --pipeline-model-parallel-layout E|ttttL "
            "--use-distributed-optimizer",
            id="pp2-cp2-input-alone",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            2,
            "--tensor-model-parallel-size 2 --distribute-saved-activations "
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
            id="tp2-distributed-activations",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            2,
            f"{TP2_SP} --recompute-granularity selective --recompute-modules core_attn mlp",
            id="tp2-sp-recompute-modules",
        ),
    ],
)
def test_stages(train, ranks, layout):
    """Gradient norms are about 0.6: clipping acts, and needs every stage's part of the norm."""
    assert_equal_to_one_process(train, "--input-interface gf2 --clip-grad 0.3", ranks, layout)


@pytest.mark.parametrize(
    "flags, layout",
    [
        # Masked tokens differ between micro-batches: what is averaged over what shows.
        ("--eod-mask-loss", "--use-distributed-optimizer"),
        ("--eod-mask-loss --calculate-per-token-loss", ""),
        ("--reset-attention-mask --reset-position-ids", TP2_SP),
        ("--num-query-groups 2 --qk-layernorm", TP2_SP),
        (
            "--normalization LayerNorm --no-swiglu --add-bias-linear "
            "--layernorm-zero-centered-gamma",
            TP2_SP,
        ),
        ("--no-swiglu --squared-relu --kv-channels 16 --rotary-percent 0.5", TP2_SP),
        ("--input-interface lowdim --clip-grad 0", "--tensor-model-parallel-size 2"),
        # Long enough for attention in blocks, which context parallelism does not use.
        ("--seq-length 300 --num-query-groups 2", TP2_SP),
        ("--seq-length 300", f"{CP2} --recompute-granularity selective"),
        # The ranks of a sequence hold unequal numbers of counted tokens.
        ("--eod-mask-loss --num-query-groups 2", CP2),
        pytest.param(
            "--eod-mask-loss --calculate-per-token-loss --input-interface gf2",
            f"{CP2} --use-distributed-optimizer --overlap-grad-reduce",
            marks=pytest.mark.slow,
        ),
        ("--reset-attention-mask --input-interface lowdim", CP2),
        pytest.param("--fold-first-layer --input-interface gf2", CP2, marks=pytest.mark.slow),
    ],
    ids=[
        "eod-mask",
        "per-token",
        "documents",
        "gqa-qk-norm",
        "layernorm-bias",
        "relu2",
        "lowdim",
        "long",
        "cp2-long",
        "cp2-eod-mask-gqa",
        "cp2-per-token",
        "cp2-documents",
        "cp2-folded",
    ],
)
def test_variants(train, flags, layout):
    assert_equal_to_one_process(train, flags, 2, layout)


@pytest.mark.slow
def test_a_query_group_that_two_ranks_share(train):
    layout = "--tensor-model-parallel-size 4 --sequence-parallel"
    assert_equal_to_one_process(train, "--num-query-groups 2", 4, layout)


def test_loss_and_gradient_of_masked_batches(base_flags):
    """The report is the mean over all tokens; the gradient is Megatron's mean of each micro-batch.

    With --calculate-per-token-loss the gradient is that of the mean over all tokens as well.
    """
    flags = [*base_flags, "--micro-batch-size", "1", "--global-batch-size", "2"]
    [(losses, tokens, mean_of_means, report)] = run_ranks(1, cases.masked_step, flags)
    [(_, _, mean_of_tokens, _)] = run_ranks(
        1, cases.masked_step, [*flags, "--calculate-per-token-loss"]
    )
    assert tokens == [32, 3]
    assert report == pytest.approx(sum(losses), rel=1e-6)
    single = [run_ranks(1, cases.masked_step, flags, only=i)[0][2] for i in (0, 1)]
    expected = (single[0] + single[1]) / 2
    torch.testing.assert_close(mean_of_means, expected, rtol=1e-4, atol=1e-7)
    expected = (32 * single[0] + 3 * single[1]) / 35
    torch.testing.assert_close(mean_of_tokens, expected, rtol=1e-4, atol=1e-7)


def test_context_parallel_slices():
    """Megatron's cut for 2 ranks: quarters 0 and 3, and quarters 1 and 2."""
    from fixedcode_megatron.training.data_feed import context_parallel_slice

    batch = {
        "tokens": torch.arange(8).expand(2, 8),
        "attention_mask": torch.arange(8).reshape(1, 1, 8, 1).expand(2, 1, 8, 8),
        "loss_mask": torch.tensor([[1.0] * 8, [0.0] * 5 + [1.0] * 3]),
    }
    for rank, expected in ((0, [0, 1, 6, 7]), (1, [2, 3, 4, 5])):
        part = context_parallel_slice(batch, rank=rank, size=2)
        assert part["tokens"].tolist() == [expected, expected]
        assert part["attention_mask"][0, 0, :, 0].tolist() == expected
        assert part["attention_mask"].shape == (2, 1, 4, 8)
        assert part["num_tokens"].item() == 11  # of the whole sequences
