"""The figures of a run, against values worked out by hand or counted on the real objects."""

from __future__ import annotations

import json
import math

import pytest

from tests.distributed import metric_cases as cases
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

QUICK = "--eval-interval 100 --eval-iters 0 --lr-warmup-iters 0 --train-iters 4"
TP2, PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
SHARDED = "--use-distributed-optimizer"
PARTS = ("input", "layers", "head")


@pytest.fixture(scope="module")
def one_rank(train):
    return train(f"{QUICK} --input-interface learned")


@pytest.mark.parametrize(
    "flags, ranks",
    [
        (f"{TP2} --sequence-parallel", 2),
        pytest.param(PP2, 2, marks=pytest.mark.slow),
        (f"{SHARDED} --overlap-grad-reduce --overlap-param-gather", 2),
        pytest.param(f"{TP2} {PP2} {SHARDED}", 4, marks=pytest.mark.slow),
    ],
    ids=["tp2-sp", "pp2", "dp2-sharded", "tp2-pp2"],
)
def test_gradient_norms_of_the_parts_do_not_depend_on_the_layout(train, one_rank, flags, ranks):
    run = train(f"{QUICK} --input-interface learned {flags}", ranks=ranks)
    for part in PARTS:
        expected = one_rank.column(f"grad norm {part}")
        assert min(expected) > 0
        assert run.column(f"grad norm {part}") == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("more", [pytest.param("", marks=pytest.mark.slow), SHARDED])
def test_gradient_norms_of_experts(train, more):
    """Each expert's gradient counts once, on the rank that has it."""
    flags = (
        f"{QUICK} --input-interface learned --num-experts 4 --moe-token-dispatcher-type alltoall"
    )
    one, two = train(flags), train(f"{flags} --expert-model-parallel-size 2 {more}", ranks=2)
    for part in PARTS:
        assert two.column(f"grad norm {part}") == pytest.approx(
            one.column(f"grad norm {part}"), rel=1e-5
        )
    for row in two.rows():
        squares = sum(row[f"grad norm {part}"] ** 2 for part in PARTS)
        assert math.sqrt(squares) == pytest.approx(row["grad norm"], rel=1e-5)


@pytest.mark.parametrize("flags", [f"--bf16 {SHARDED}", "--input-interface learned --bf16"])
def test_gradient_norms_of_the_parts_add_up(train, flags):
    run = train(f"{QUICK} --log-interval 2 {flags}", ranks=2)
    assert run.column("iteration") == [2, 4]
    for row in run.rows():
        squares = sum((row[f"grad norm {part}"] or 0.0) ** 2 for part in PARTS)
        assert math.sqrt(squares) == pytest.approx(row["grad norm"], rel=1e-5)
        assert (row["grad norm input"] is None) == ("learned" not in flags)


def test_memory_by_category(train):
    """A layer has 41,616 weights, the final norm 72, the head 512 x 72; FP32, two moments."""
    weights = 4 * (4 * 41_616 + 72 + 512 * 72)
    row = train(QUICK).rows()[-1]
    assert row["memory parameters (bytes)"] == weights
    assert row["memory gradients (bytes)"] == weights
    assert row["memory optimizer (bytes)"] == 2 * weights
    assert row["memory activations peak (bytes)"] is None
    assert row["memory peak of"] == "resident set"
    assert 4 * weights < row["memory peak (bytes)"] < 2**34


def test_memory_of_the_distributed_optimizer_in_bf16(train):
    """BF16 weights, FP32 gradients; main weights and moments, FP32, are cut in two."""
    count = 4 * 41_616 + 72 + 512 * 72
    row = train(f"{QUICK} --bf16 {SHARDED}", ranks=2).rows()[-1]
    padding = 1024  # of DDP's buffers, elements
    assert 0 <= row["memory parameters (bytes)"] - 2 * count <= 2 * padding
    assert 0 <= row["memory gradients (bytes)"] - 4 * count <= 4 * padding
    assert row["memory optimizer (bytes)"] == pytest.approx(12 * count / 2, abs=12 * padding)


def test_without_a_gpu_nothing_is_said_of_one(train):
    row = train(QUICK).rows()[-1]
    for name in ("MFU", "power per GPU (W)", "energy (J)", "tokens per joule"):
        assert row[name] is None
    assert row["tokens per second"] == row["tokens per second per GPU"]


def test_energy_and_tokens_per_joule():
    """1 J on rank 0 and 2 J on rank 1 between reports: 600 tokens are 200 a joule."""
    for reports in run_ranks(2, cases.monitor_reports, 600):
        for report in reports:
            assert list(report.values()) == [150.0, 3.0, 200.0, 50.5, 61.0, 999.0, 1999.0]
    for reports in run_ranks(2, cases.monitor_reports, 600, without_energy_on=1):
        assert set(reports[1].values()) == {None}


# What the fixed interface saves


@pytest.mark.parametrize(
    "flags",
    [
        f"{TP2} --sequence-parallel",
        f"--bf16 {SHARDED}",
        *(pytest.param(flags, marks=pytest.mark.slow) for flags in (TP2, PP2, "", SHARDED)),
    ],
    ids=["tp2-sp", "dp2-sharded-bf16", "tp2", "pp2", "dp2", "dp2-sharded"],
)
def test_savings_are_those_of_building_the_learned_model(base_flags, flags):
    argv = [*base_flags, *flags.split()]
    learned = run_ranks(2, cases.held_and_sent, [*argv, "--input-interface", "learned"])
    fixed = run_ranks(2, cases.held_and_sent, [*argv, "--input-interface", "gf2"])
    stages = 2 if "pipeline" in flags else 1

    def saved(name):
        """Mean over the ranks of the first stage."""
        return sum(a[name] - b[name] for (a, _), (b, _) in zip(learned, fixed, strict=True)) / (
            2 // stages
        )

    reported = fixed[0][1]
    shares = 2 if "tensor" in flags else 1
    assert learned[0][1] is None
    assert reported["parameters"] == 512 * 72 == shares * saved("parameters")
    for name in ("parameter_bytes", "gradient_bytes"):
        assert reported[name] == saved(name)
    main = 4 * 512 * 72 // 2 if "bf16" in flags else 0  # FP32 weights, in no state of torch's
    assert reported["optimizer_bytes"] == saved("optimizer_bytes") + main
    padding = 4096  # bytes that DDP's buffers are filled up with
    if stages == 1 and shares == 1:
        assert reported["gradient_reduction_bytes"] == pytest.approx(saved("sent"), abs=padding)
        assert reported["gradient_reduction_bytes"] > 0
        gathered = reported["parameter_gather_bytes"]
        assert gathered == pytest.approx(saved("sent_in_update"), abs=padding)
        assert (gathered > 0) == (SHARDED in flags)
    else:
        assert reported["gradient_reduction_bytes"] == 0
        assert reported["tensor_parallel_collectives"] == saved("calls")
        assert reported["tensor_parallel_bytes"] == saved("sent")
        assert (saved("calls") > 0) == (shares > 1)


def test_savings_are_reported_at_start(train):
    run = train(f"{QUICK} --train-iters 1", ranks=2)
    found = json.loads((run.folder / "savings.json").read_text())
    assert found["parameters"] == 36_864
    assert found["gradient_reduction_bytes"] == 4 * 36_864
    assert "saved against a learned table" in (run.folder / "rank1.log").read_text()
