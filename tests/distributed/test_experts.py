"""Mixtures of experts: the layer written out, and layouts that equal one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.distributed import cases
from tests.distributed.ranks import run_ranks
from tests.distributed.test_more_layouts import CP2, SHORT, TP2_SP, assert_equal_to_one_process

pytestmark = pytest.mark.distributed

MOE = "--num-experts 4"
ALL = (
    f"{MOE} --moe-aux-loss-coeff 0.02 --moe-z-loss-coeff 0.001 --moe-layer-freq 2 "
    "--moe-shared-expert-intermediate-size 48"
)
EP2 = "--expert-model-parallel-size 2"
ALLTOALL = "--moe-token-dispatcher-type alltoall"


@pytest.mark.parametrize(
    "flags, ranks, layout",
    [
        pytest.param(ALL, 2, f"{EP2} {ALLTOALL}", id="ep2-alltoall"),
        pytest.param(
            MOE, 4, f"{EP2} {TP2_SP} --use-distributed-optimizer", id="tp2-sp-ep2-distributed"
        ),
        *(
            pytest.param(flags, ranks, layout, id=name, marks=pytest.mark.slow)
            for name, flags, ranks, layout in [
                ("ep2", ALL, 2, EP2),
                ("tp2-sp", ALL, 2, TP2_SP),
                ("cp2", ALL, 2, CP2),
                ("pp2", ALL, 2, "--pipeline-model-parallel-size 2"),
                (
                    "tp2-sp-ep4-alltoall",
                    MOE,
                    4,
                    f"{TP2_SP} --expert-model-parallel-size 4 --expert-tensor-parallel-size 1 "
                    f"{ALLTOALL}",
                ),
                (
                    "ep2-pp2-overlap",
                    ALL,
                    4,
                    f"{EP2} --pipeline-model-parallel-size 2 --use-distributed-optimizer "
                    "--overlap-grad-reduce --overlap-param-gather",
                ),
                (
                    "ep2-recompute",
                    MOE,
                    2,
                    f"{EP2} --recompute-granularity selective --recompute-modules moe core_attn",
                ),
            ]
        ),
    ],
)
def test_layouts(train, flags, ranks, layout):
    assert_equal_to_one_process(train, f"--input-interface gf2 {flags}", ranks, layout)


@pytest.mark.slow
def test_a_checkpoint_moves_between_layouts(train, tmp_path):
    flags = f"{SHORT} --input-interface gf2 {ALL} --use-distributed-optimizer"
    straight = train(flags)
    kept = f"{flags} --save {tmp_path} --load {tmp_path}"
    train(f"{kept} {EP2} {ALLTOALL} --exit-interval 3", ranks=2)
    refused = train(kept)
    assert refused.status == 2
    assert "--expert-model-parallel-size 2" in (refused.folder / "rank0.log").read_text()
    resumed = train(f"{kept} {EP2} {TP2_SP}", ranks=4)
    assert resumed.losses == pytest.approx(straight.losses[3:], abs=1e-5)


def experts_by_hand(argv: list[str]) -> tuple[Any, Any]:
    """Output and gradients of one MoE layer: megatron-core's, and every expert on every token."""
    trainer = cases._trainer(argv)
    layer = trainer.models[0].module.decoder.layers[0].mlp
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randn(6, 3, 72, generator=generator).requires_grad_()  # [s, b, h]
    upstream = torch.randn(6, 3, 72, generator=generator)
    weights = [layer.router.weight]
    for expert in layer.experts.local_experts:
        weights += [expert.linear_fc1.weight, expert.linear_fc2.weight]

    def gradients(output: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(output, [tokens, *weights], upstream))

    found, _ = layer(tokens)
    scores = F.linear(tokens, weights[0])
    chosen = scores.topk(2)
    share = torch.zeros_like(scores).scatter(-1, chosen.indices, chosen.values.softmax(-1))
    expected = torch.zeros_like(tokens)
    for number, (up, down) in enumerate(zip(weights[1::2], weights[2::2], strict=True)):
        gate, value = F.linear(tokens, up).chunk(2, -1)
        expected = expected + share[..., number, None] * F.linear(F.silu(gate) * value, down)
    return (found, *gradients(found)), (expected, *gradients(expected))


def test_a_layer_by_hand(base_flags):
    flags = f"{MOE} --no-gradient-accumulation-fusion"  # gradients come back from autograd
    [(found, expected)] = run_ranks(1, experts_by_hand, [*base_flags, *flags.split()])
    assert len(found) == 2 + 1 + 4 * 2  # output, tokens, router, two matrices of each expert
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.count_nonzero(theirs)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
