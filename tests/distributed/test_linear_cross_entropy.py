"""Output layer and loss in one, against torch's cross entropy on whole logits in FP64."""

from __future__ import annotations

import pytest
import torch

from tests.distributed import linear_cross_entropy_cases as cases
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

LAYOUTS = {
    "one": "",
    "tp2": "--tensor-model-parallel-size 2",
    "tp2-sp": "--tensor-model-parallel-size 2 --sequence-parallel",
    "tp4-sp": "--tensor-model-parallel-size 4 --sequence-parallel",
}
SHAPE = dict(tokens=40, vocabulary=512, width=24)


@pytest.mark.parametrize("logit_scale", [1.0, 40.0], ids=["ordinary", "extreme"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradients(base_flags, layout, logit_scale):
    """Logits up to +-150 leave some ranks with shares of e^-100 and labels that underflow.

    FP32 numbers of that size are 1.5e-5 apart, which is the relative error of each probability.
    """
    tolerance = 3e-6 if logit_scale == 1 else 3e-5
    expected, ranks = _run(base_flags, layout, logit_scale, torch.float32, chunk=7 * 512)
    for rank in ranks:
        assert rank["loss"].item() == pytest.approx(expected["loss"].item(), rel=2e-6)
    for name in ("hidden", "weight"):
        scale = expected[name].abs().max().item()
        found = _whole(ranks, name, expected[name]).double()
        torch.testing.assert_close(found, expected[name], atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize("layout", ["one", "tp2-sp"])
def test_bf16(base_flags, layout):
    expected, ranks = _run(base_flags, layout, 1.0, torch.bfloat16, chunk=7 * 512)
    assert ranks[0]["loss"].dtype == torch.float32
    assert ranks[0]["loss"].item() == pytest.approx(expected["loss"].item(), rel=2e-3)
    for name in ("hidden", "weight"):
        found = _whole(ranks, name, expected[name])
        assert found.dtype == torch.bfloat16
        error = (found.double() - expected[name]).norm() / expected[name].norm()
        assert error < 0.01


@pytest.mark.parametrize("layout", ["one", "tp2"])
def test_no_tensor_holds_the_logits(base_flags, layout):
    """With 40 tokens and 512 ids, 20,480 logits: nothing larger than the weight is made."""
    size = 2 if layout == "tp2" else 1
    _, ranks = _run(base_flags, layout, 1.0, torch.float32, chunk=4096 // size)
    assert 512 * 24 // size < 40 * 512 // size
    assert all(int(rank["largest"]) == 512 * 24 // size for rank in ranks)


@pytest.mark.parametrize("layout", ["one", "tp2"])
def test_chunks_do_not_change_the_loss(base_flags, layout):
    losses = [
        _run(base_flags, layout, 1.0, torch.float32, chunk)[1][0]["loss"].item()
        for chunk in (1, 5 * 512, 10**9)
    ]
    assert losses == pytest.approx([losses[-1]] * 3, rel=1e-6)


def _run(base_flags, layout, logit_scale, dtype, chunk):
    flags = [*base_flags, *LAYOUTS[layout].split()]
    ranks = {"one": 1, "tp2": 2, "tp2-sp": 2, "tp4-sp": 4}[layout]
    shape = SHAPE | {"logit_scale": logit_scale}
    expected = cases.expected(cases.problem(**shape))
    return expected, run_ranks(ranks, cases.found, flags, shape, dtype, chunk)


def _whole(ranks, name, expected):
    """Put the ranks' parts together; what every rank holds whole must agree."""
    if ranks[0][name].shape == expected.shape:
        assert all(torch.equal(rank[name], ranks[0][name]) for rank in ranks)
        return ranks[0][name]
    return torch.cat([rank[name] for rank in ranks])
