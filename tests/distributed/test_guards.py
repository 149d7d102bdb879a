"""Bad numbers, hangs and deaths: what happens, and that every rank agrees on it."""

from __future__ import annotations

import math
import re
import signal

import pytest

from fixedcode_megatron.training.checkpoint_files import whole_iterations
from tests.distributed import guard_cases as cases
from tests.distributed.conftest import Run
from tests.distributed.ranks import RankError, run_ranks

pytestmark = pytest.mark.distributed

QUICK = "--eval-interval 100 --eval-iters 0 --lr-warmup-iters 0"
LAYOUTS = {
    "dp2": "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
    "tp2": "--tensor-model-parallel-size 2",
    "pp2": "--pipeline-model-parallel-size 2",
}


def log_of(folder, rank=0):
    return (folder / f"rank{rank}.log").read_text()


def flags_of(base_flags, folder, more):
    return [*base_flags, *f"{QUICK} --run-dir {folder} {more}".split()]


def layouts(*quick):
    """All layouts; those not named are left to the long proofs."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=[] if name in quick else slow) for name in LAYOUTS]


# Numbers that are not finite


@pytest.mark.parametrize("name", layouts("dp2", "pp2"))
def test_one_bad_iteration_is_left_out_on_every_rank(base_flags, train, tmp_path, name):
    """As if its data had been skipped: the same losses afterwards, bit for bit."""
    layout = LAYOUTS[name]
    flags = flags_of(base_flags, tmp_path, f"--train-iters 5 {layout}")
    assert run_ranks(
        2, cases.with_scaled_loss, flags, [3], rank=1, factor=math.nan, output=tmp_path
    ) == [0, 0]
    run, skipped = (
        Run(tmp_path, 0),
        train(f"{QUICK} --train-iters 5 --iterations-to-skip 3 {layout}", ranks=2),
    )
    assert run.losses[2] is None
    assert run.losses == skipped.losses
    assert run.column("grad norm")[3:] == skipped.column("grad norm")[3:]
    assert run.column("learning rate") == skipped.column("learning rate")
    assert run.column("number of skipped iterations") == [0, 0, 1, 1, 1]
    assert run.column("number of nan iterations") == [0, 0, 1, 1, 1]
    assert skipped.column("number of nan iterations") == [0, 0, 0, 0, 0]
    assert skipped.column("data checksum") == run.column("data checksum")
    warning = log_of(tmp_path)
    assert "iteration 3: the gradient norm is nan; rank 1 has a loss that is not finite" in warning
    assert "samples 16 to 23: the update is left out" in warning


@pytest.mark.parametrize("name", layouts("tp2"))
def test_a_broken_weight_ends_the_run_and_is_never_saved(base_flags, tmp_path, name):
    broken = 1 if name == "dp2" else 0
    more = (
        f"--train-iters 10 --save {tmp_path / 'ck'} --save-interval 2 --max-consecutive-skips 2 "
        f"{LAYOUTS[name]}"
    )
    flags = flags_of(base_flags, tmp_path, more)
    statuses = run_ranks(2, cases.with_bad_weight, flags, iteration=3, rank=broken, output=tmp_path)
    assert statuses == [1, 1]
    text = log_of(tmp_path)
    for word in (
        "iteration 4: the gradient norm is nan",
        "2 times in a row",
        "--iterations-to-skip 4",
        f"rank {broken} has ",
        "the weights module.",
        "samples 24 to 31",
    ):
        assert word in text
    assert "Traceback" not in text + log_of(tmp_path, 1)
    assert whole_iterations(tmp_path / "ck") == [2]
    assert run_ranks(
        2, cases.parameters_finite, [*flags, "--load", str(tmp_path / "ck")], output=tmp_path
    ) == [True, True]


def test_a_state_that_is_not_finite_is_not_saved(base_flags, tmp_path):
    flags = flags_of(base_flags, tmp_path, f"--save {tmp_path / 'ck'} --save-interval 1")
    statuses = run_ranks(2, cases.with_bad_weight, flags, iteration=2, rank=1, output=tmp_path)
    assert statuses == [1, 1]
    assert "iteration 2 is not saved" in log_of(tmp_path)
    assert "rank 1: module." in log_of(tmp_path)
    assert whole_iterations(tmp_path / "ck") == [1]


def test_without_the_guard_what_is_not_finite_is_counted_alone(train):
    run = train(
        f"{QUICK} --train-iters 4 --lr 1e30 --clip-grad 0 --no-check-for-nan-in-loss-and-grad",
        ranks=2,
    )
    assert run.column("number of nan iterations") == [0, 1, 2, 3]
    assert run.column("number of skipped iterations") == [0, 0, 0, 0]
    assert run.column("lm loss")[1:] == [None, None, None]  # JSON has no NaN


# Spikes


@pytest.mark.parametrize(
    "flag",
    ["--check-for-spiky-loss", pytest.param("--check-for-large-grads", marks=pytest.mark.slow)],
)
def test_a_spike_of_one_rank_is_left_out_also_after_a_resume(base_flags, tmp_path, flag):
    more = (
        f"--train-iters 20 {flag} --save {tmp_path / 'ck'} --load {tmp_path / 'ck'} "
        "--use-distributed-optimizer"
    )
    flags = flags_of(base_flags, tmp_path, more)
    spike = dict(rank=1, factor=100.0, output=tmp_path)
    for extra in (["--exit-interval", "18"], []):
        assert run_ranks(2, cases.with_scaled_loss, [*flags, *extra], [19], **spike) == [0, 0]
    run = Run(tmp_path, 0)
    assert run.column("number of skipped iterations") == 18 * [0] + [1, 1]
    assert run.column("number of nan iterations") == 20 * [0]
    what = "loss" if "loss" in flag else "gradient norm"
    assert f"iteration 19: the {what} of " in log_of(tmp_path)


# Hangs and deaths


def test_a_hang_ends_with_a_message_that_says_where(base_flags, tmp_path):
    flags = flags_of(base_flags, tmp_path, "--hang-timeout-minutes 0.1")
    with pytest.raises(RankError, match=r"rank 0: died\n.*rank 1: died"):
        run_ranks(2, cases.asleep_in_the_data, flags, iteration=3, rank=1, output=tmp_path)
    text, other = log_of(tmp_path), log_of(tmp_path, 1)
    assert re.search(r"rank 0: no progress for \d+ s in iteration 3, phase forward-backward", text)
    assert "hanging job ended: forward-backward: rank 0; data: rank 1" in text
    assert re.search(r"rank 1: no progress for \d+ s in iteration 3, phase data", other)
    assert "in sleep_for_ever" in other  # the stack


def test_a_killed_rank_ends_the_others_with_one_line(base_flags, tmp_path):
    flags = flags_of(base_flags, tmp_path, "--train-iters 1000")
    with pytest.raises(RankError, match="rank 1: died"):
        run_ranks(2, cases.killed, flags, iteration=3, rank=1, output=tmp_path)
    lines = [line for line in log_of(tmp_path).splitlines() if "iteration        " not in line]
    [line] = [line for line in lines if "lost contact" in line]
    assert "rank 0: lost contact with another rank in iteration 3, phase" in line
    assert "Traceback" not in log_of(tmp_path)


def test_a_killed_rank_is_noticed_where_no_collective_would_fail(tmp_path):
    """As with NCCL, whose kernels wait for ever for a peer on the same host."""
    with pytest.raises(RankError, match="rank 1: died"):
        run_ranks(3, cases.killed_beside_a_waiting_rank, rank=1, output=tmp_path)
    for rank in (0, 2):
        assert f"rank {rank}: rank 1 has died, in iteration 0" in log_of(tmp_path, rank)


def test_a_signal_during_an_evaluation_ends_it(base_flags, tmp_path):
    more = f"--save {tmp_path / 'ck'} --eval-interval 2 --eval-iters 200 --train-iters 10"
    flags = flags_of(base_flags, tmp_path, more)
    statuses = run_ranks(2, cases.signalled_in_evaluation, flags, rank=1, call=3, output=tmp_path)
    assert statuses == [128 + signal.SIGTERM] * 2
    run = Run(tmp_path, 143)
    assert run.column("iteration") == [1, 2]
    assert run.rows("validation") == []  # a part of it is no result
    assert whole_iterations(tmp_path / "ck") == [2]
