"""The same model at any parallel layout: losses and gradient norms equal one process's."""

from __future__ import annotations

import math

import pytest

pytestmark = pytest.mark.distributed

TP2 = "--tensor-model-parallel-size 2"
PP2 = "--pipeline-model-parallel-size 2"
PP4 = "--pipeline-model-parallel-size 4"
CP2 = "--context-parallel-size 2"
SP = "--sequence-parallel"
OVERLAP = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
LAYOUTS = {
    "tp2": (2, TP2),
    "tp2-sp": (2, f"{TP2} {SP}"),
    "tp4-sp": (4, f"--tensor-model-parallel-size 4 {SP}"),
    "pp2": (2, PP2),
    "pp4": (4, PP4),
    "pp2-interleaved": (2, f"{PP2} --virtual-pipeline-model-parallel-size 2"),
    "pp4-input-alone": (4, f"{PP4} --pipeline-model-parallel-layout E|tt|tt|L"),
    "dp2": (2, ""),
    "dp2-distributed-optimizer": (2, "--use-distributed-optimizer"),
    "dp2-overlap": (2, OVERLAP),
    "cp2": (2, CP2),
    "cp2-tp2-sp": (4, f"{CP2} {TP2} {SP} --use-distributed-optimizer"),
    "cp4": (4, "--context-parallel-size 4"),
    "cp2-pp2-dp2": (8, f"{CP2} {PP2} {OVERLAP}"),
    "tp2-sp-pp2": (4, f"{TP2} {SP} {PP2}"),
    "tp2-sp-pp2-dp2": (8, f"{TP2} {SP} {PP2} --use-distributed-optimizer"),
}
FULL_RECOMPUTE = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
RECOMPUTE = {"kept": "", "recomputed": FULL_RECOMPUTE}
INTERFACES = ("learned", "binary", "gf2")
# What `make test` runs: every layout, each interface, recompute where it has gone wrong before.
QUICK = {
    ("tp2", "learned", "kept"),
    ("tp2-sp", "binary", "kept"),
    ("tp2-sp", "gf2", "recomputed"),
    ("tp4-sp", "binary", "kept"),
    ("pp2", "learned", "kept"),
    ("pp2", "binary", "recomputed"),
    ("pp4", "binary", "kept"),
    ("pp2-interleaved", "binary", "kept"),
    ("pp2-interleaved", "gf2", "recomputed"),
    ("pp4-input-alone", "binary", "kept"),
    ("dp2", "binary", "kept"),
    ("dp2-distributed-optimizer", "gf2", "kept"),
    ("dp2-overlap", "learned", "kept"),
    ("cp2", "learned", "kept"),
    ("cp2", "binary", "recomputed"),
    ("cp2-tp2-sp", "binary", "kept"),
    ("tp2-sp-pp2", "gf2", "kept"),
    ("tp2-sp-pp2-dp2", "binary", "kept"),
}
GRID = [
    pytest.param(
        layout,
        interface,
        recompute,
        marks=[] if (layout, interface, recompute) in QUICK else [pytest.mark.slow],
    )
    for layout in LAYOUTS
    for interface in INTERFACES
    for recompute in RECOMPUTE
]


@pytest.mark.parametrize("layout, interface, recompute", GRID)
def test_twenty_losses_equal_one_process(
    train, reference, record_property, layout, interface, recompute
):
    """20 losses and gradient norms, 2 validation losses, the samples read."""
    ranks, flags = LAYOUTS[layout]
    expected = reference(interface)
    run = train(f"--input-interface {interface} {flags} {RECOMPUTE[recompute]}", ranks=ranks)
    assert run.status == 0
    for kind, name, count in (
        ("train", "lm loss", 20),
        ("train", "grad norm", 20),
        ("validation", "lm loss", 2),
    ):
        found = run.column(name, kind)
        assert len(found) == count
        assert found == pytest.approx(expected.column(name, kind), abs=1e-5)
        pairs = zip(found, expected.column(name, kind), strict=True)
        record_property(f"{kind} {name}", max(abs(a - b) for a, b in pairs))
    # The same samples went through, whatever rank read them.
    assert run.column("data checksum") == expected.column("data checksum")


@pytest.mark.parametrize("interface", ["random", "lowdim"])
def test_controls_equal_one_process(train, reference, interface):
    ranks, flags = LAYOUTS["tp2-sp-pp2"]
    run = train(f"--input-interface {interface} {flags}", ranks=ranks)
    assert run.losses == pytest.approx(reference(interface).losses, abs=1e-5)


@pytest.mark.parametrize("interface", ["learned", "binary", "gf2"])
def test_bf16_stays_close_to_fp32(train, reference, interface):
    run = train(f"--input-interface {interface} --bf16")
    assert run.losses == pytest.approx(reference(interface).losses, abs=0.02)


@pytest.mark.parametrize("interface", ["learned", "binary", "gf2"])
def test_the_model_learns(reference, interface):
    losses = reference(interface).losses
    assert losses[0] == pytest.approx(math.log(512), abs=0.1)  # an untrained head is uniform
    assert losses[-1] < losses[0] - 0.3
