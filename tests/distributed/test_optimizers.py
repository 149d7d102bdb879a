"""One update, worked out from the gradients of a separate backward pass."""

from __future__ import annotations

import math

import pytest
import torch

from tests.distributed import cases
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

Tensors = dict[str, torch.Tensor]
MODEL = "--normalization LayerNorm --add-bias-linear --global-batch-size 4 --lr-warmup-iters 0"


def one_update(argv: list[str]) -> tuple[Tensors, Tensors, float]:
    """The weights of a rank before and after an iteration, and the gradient norm it reported."""
    trainer, before, norm = cases.one_update(argv)
    return before, cases.weights_of(trainer), norm


def adamw(weight: torch.Tensor, grad: torch.Tensor, decay: float) -> torch.Tensor:
    """The first update of AdamW: both moments are corrected to the gradient itself."""
    return weight * (1 - 4e-3 * decay) - 4e-3 * grad / (grad.abs() + 1e-8)


def sgd(weight: torch.Tensor, grad: torch.Tensor, decay: float) -> torch.Tensor:
    """The first update of SGD, with L2 regularisation as torch has it."""
    return weight - 4e-3 * (grad + decay * weight)


@pytest.mark.parametrize(
    "clip",
    [
        pytest.param(0.05, id="clipped"),
        pytest.param(1e6, id="unclipped", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("optimizer", [adamw, sgd])
@pytest.mark.parametrize("ranks, layout", [(1, ""), (2, "--tensor-model-parallel-size 2")])
def test_first_update(base_flags, optimizer, clip, ranks, layout):
    """Norms and biases do not decay; the gradients' norm is that of all ranks together."""
    flags = [*base_flags, *MODEL.split(), *layout.split(), "--weight-decay", "0.1"]
    flags += ["--optimizer", optimizer.__name__.replace("w", ""), "--clip-grad", str(clip)]
    gradients = run_ranks(ranks, cases.gradients, flags)
    squares = 0.0
    for name in gradients[0]:
        parts = [float(found[name].double().square().sum()) for found in gradients]
        # What every tensor-parallel rank has whole counts once.
        whole = "norm" in name or name.endswith(("linear_proj.bias", "linear_fc2.bias"))
        squares += parts[0] if whole else sum(parts)
    for (before, after, norm), gradient in zip(
        run_ranks(ranks, one_update, flags), gradients, strict=True
    ):
        assert norm == pytest.approx(math.sqrt(squares), rel=1e-5)
        factor = min(1.0, clip / math.sqrt(squares))
        for name, weight in before.items():
            decay = 0.1 if weight.dim() > 1 else 0.0
            expected = optimizer(weight, gradient[name] * factor, decay)
            torch.testing.assert_close(after[name], expected, rtol=0, atol=2e-6, msg=name)
