"""The same model at any parallel layout: losses and gradient norms equal one process's."""

from __future__ import annotations

import math

import pytest

pytestmark = pytest.mark.distributed

LAYOUTS = {
    "tp2": (2, "--tensor-model-parallel-size 2"),
    "tp2-sp": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
    "dp2": (2, ""),
    "dp2-distributed-optimizer": (2, "--use-distributed-optimizer"),
    "dp2-overlap": (
        2,
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
    ),
    "tp2-sp-pp2": (
        4,
        "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2",
    ),
}


@pytest.mark.parametrize("interface", ["learned", "binary", "gf2"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_twenty_losses_equal_one_process(train, reference, layout, interface):
    ranks, flags = LAYOUTS[layout]
    expected = reference(interface)
    run = train(f"--input-interface {interface} {flags}", ranks=ranks)
    assert run.status == 0
    assert len(run.losses) == 20
    assert run.losses == pytest.approx(expected.losses, abs=1e-5)
    assert run.column("grad norm") == pytest.approx(expected.column("grad norm"), abs=1e-5)
    assert run.column("lm loss", "validation") == pytest.approx(
        expected.column("lm loss", "validation"), abs=1e-5
    )
    # The same samples went through, whatever rank read them.
    assert run.column("data checksum") == expected.column("data checksum")


@pytest.mark.parametrize("interface", ["random", "lowdim"])
def test_controls_equal_one_process(train, reference, interface):
    ranks, flags = LAYOUTS["tp2-sp-pp2"]
    run = train(f"--input-interface {interface} {flags}", ranks=ranks)
    assert run.losses == pytest.approx(reference(interface).losses, abs=1e-5)


def test_input_interface_alone_on_a_stage(train, reference):
    layout = "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et|t|t|tL"
    alone = "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout E|tt|tt|L"
    for flags in (layout, alone):
        run = train(f"--input-interface gf2 --use-distributed-optimizer {flags}", ranks=4)
        assert run.losses == pytest.approx(reference("gf2").losses, abs=1e-5)


@pytest.mark.parametrize("interface", ["learned", "binary", "gf2"])
def test_bf16_stays_close_to_fp32(train, reference, interface):
    run = train(f"--input-interface {interface} --bf16")
    assert run.losses == pytest.approx(reference(interface).losses, abs=0.02)


@pytest.mark.parametrize("interface", ["learned", "binary", "gf2"])
def test_the_model_learns(reference, interface):
    losses = reference(interface).losses
    assert losses[0] == pytest.approx(math.log(512), abs=0.1)  # an untrained head is uniform
    assert losses[-1] < losses[0] - 0.3
