"""What happens to runs that take weeks: signals, crashes, full disks, restarts, batch sizes."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from fixedcode_megatron.training.checkpoint_files import TRACKER, partial_path, whole_iterations
from tests.distributed import cases
from tests.distributed.ranks import RankError, run_ranks

pytestmark = pytest.mark.distributed

QUICK = "--eval-interval 100 --eval-iters 0 --lr-warmup-iters 0"


def log_of(run, rank=0):
    return (run.folder / f"rank{rank}.log").read_text()


@pytest.fixture
def same(tmp_path):
    """Flags of a run that saves to, and continues from, one folder."""
    return f"{QUICK} --save {tmp_path / 'ck'} --load {tmp_path / 'ck'}"


# Signals


@pytest.mark.parametrize(
    "numbers, status",
    [([signal.SIGTERM, signal.SIGTERM], 143), ([signal.SIGINT, signal.SIGINT], 130)],
    ids=["sigterm", "ctrl-c"],
)
def test_a_signal_that_comes_twice_at_once_saves_and_leaves(base_flags, tmp_path, numbers, status):
    """Slurm signals torchrun and the ranks, and torchrun the ranks again. Here rank 1 gets both."""
    flags = f"{QUICK} --save {tmp_path / 'ck'} --run-dir {tmp_path} --train-iters 10000"
    statuses = run_ranks(
        2, cases.signalled, [*base_flags, *flags.split()], numbers, rank=1, output=tmp_path
    )
    assert statuses == [status, status]
    [saved] = whole_iterations(tmp_path / "ck")
    assert (tmp_path / "ck" / TRACKER).read_text() == f"{saved}\n"
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(1, saved + 1))
    assert 3 <= saved < 10000


def test_ctrl_c_again_later_ends_at_once(monkeypatch):
    from fixedcode_megatron.config.tree import default_config
    from fixedcode_megatron.training import stopping

    monkeypatch.setattr(stopping, "SECOND_INTERRUPT_SECONDS", 0.05)
    cfg = default_config()
    stop = stopping.StopRequests(cfg, cases.idle_runtime())
    with stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)


def test_a_time_limit_saves_and_leaves(train, same, tmp_path):
    run = train(f"{same} --train-iters 100000 --exit-duration-in-mins 0.01")
    assert run.status == 0
    assert whole_iterations(tmp_path / "ck") == [run.column("iteration")[-1]]


# Crashes


def test_a_rank_killed_while_it_saves_costs_only_what_came_after_the_last_checkpoint(
    train, base_flags, same, tmp_path
):
    """Case 28. Also: rows of iterations that are done again appear once, the first set aside."""
    flags = f"{same} --train-iters 6 --save-interval 2"
    straight = train(f"{QUICK} --train-iters 6", ranks=2)
    argv = [*base_flags, *flags.split(), "--run-dir", str(tmp_path)]
    with pytest.raises(RankError, match="rank 1: died"):
        run_ranks(2, cases.killed_while_saving, argv, iteration=4, rank=1, output=tmp_path)
    checkpoints = tmp_path / "ck"
    assert (checkpoints / TRACKER).read_text() == "2\n"
    assert whole_iterations(checkpoints) == [2]
    assert partial_path(checkpoints, 4).is_dir()
    run = train(flags, ranks=2, folder=tmp_path)
    assert run.status == 0
    assert log_of(run).count(".iter_0000004.partial was never finished; going on from") == 1
    assert (checkpoints / TRACKER).read_text() == "6\n"
    assert sorted(p.name for p in checkpoints.iterdir()) == [
        "iter_0000002",
        "iter_0000004",
        "iter_0000006",
        TRACKER,
    ]
    assert run.column("iteration") == [1, 2, 3, 4, 5, 6]
    assert run.losses == straight.losses
    superseded = (tmp_path / "metrics.superseded.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in superseded] == [3, 4]


def test_a_checkpoint_that_does_not_fit_on_the_disk(train, base_flags, same, tmp_path):
    """Case 29, with a limit on the size of files in place of a small disk."""
    argv = [*base_flags, *f"{same} --run-dir {tmp_path}".split()]
    train(f"{same} --train-iters 2 --lr-decay-iters 4")
    more = [*argv, "--train-iters", "4", "--lr-decay-iters", "4", "--override-opt-param-scheduler"]
    assert run_ranks(2, cases.with_small_files, more, output=tmp_path) == [2, 2]
    text = (tmp_path / "rank0.log").read_text()
    for word in ("iteration 4 could not be written", str(tmp_path / "ck"), "of iteration 2"):
        assert word in text
    assert "Traceback" not in text
    assert {p.name for p in (tmp_path / "ck").iterdir()} == {"iter_0000002", TRACKER}


# Folders


def test_folders_that_cannot_be_used_are_found_before_training(train, same, tmp_path):
    run = train(f"{QUICK} --save /dev/null/x", ranks=2)
    assert run.status == 2
    assert "--save /dev/null/x cannot be written to" in log_of(run)
    train(f"{same} --train-iters 2")
    for flags in ("", f"--load {tmp_path / 'ck'} --finetune"):
        run = train(f"{QUICK} --save {tmp_path / 'ck'} --train-iters 2 {flags}")
        assert run.status == 2
    run = train(f"{QUICK} --save {tmp_path / 'ck'} --train-iters 2", ranks=2)
    assert "already holds checkpoints, up to iteration 2" in log_of(run)
    assert "Traceback" not in log_of(run) + log_of(run, 1)


def test_two_runs_do_not_share_a_run_folder(train, tmp_path):
    from fixedcode_megatron.training.metrics_file import MetricsFile

    first = MetricsFile(tmp_path, 0)
    run = train(f"{QUICK} --train-iters 2", ranks=2, folder=tmp_path)
    assert run.status == 2
    assert "another run is writing" in log_of(run)
    first.close()
    assert train(f"{QUICK} --train-iters 2", ranks=2, folder=tmp_path).column("iteration") == [1, 2]


# Restarts


def test_a_finished_run_started_again_does_nothing(train, same, tmp_path):
    flags = f"{same} --train-iters 3 --split 80,10,10 --eval-iters 1"
    first = train(flags, folder=tmp_path)
    assert [row["kind"] for row in first.rows("test")] == ["test"]
    before = (tmp_path / "metrics.jsonl").read_text()
    stamp = (tmp_path / "ck" / "iter_0000003" / "metadata.json").stat().st_mtime_ns
    again = train(flags, folder=tmp_path)
    assert again.status == 0
    assert (tmp_path / "metrics.jsonl").read_text() == before
    assert (tmp_path / "ck" / "iter_0000003" / "metadata.json").stat().st_mtime_ns == stamp
    longer = train(f"{flags} --train-iters 5 --override-opt-param-scheduler", folder=tmp_path)
    assert longer.column("iteration") == [1, 2, 3, 4, 5]


def test_rewinding_keeps_the_checkpoint_that_the_tracker_names(train, same, tmp_path):
    train(f"{same} --train-iters 6 --save-interval 2")
    train(f"{same} --train-iters 6 --ckpt-step 2 --exit-interval 3 --keep-last-checkpoints 1")
    assert (tmp_path / "ck" / TRACKER).read_text() == "3\n"
    assert whole_iterations(tmp_path / "ck") == [3, 4, 6]


def test_an_optimizer_started_anew_counts_its_own_steps(train, same, tmp_path):
    """Adam's bias correction depends on the count; iterations are another one."""
    flags = f"{same} --train-iters 6 --lr-decay-style constant"
    train(f"{flags} --exit-interval 2 --no-save-optim")
    straight = train(f"{flags} --no-load-rng --save-interval 6 --save {tmp_path / 'b'}")
    train(f"{flags} --exit-interval 4")
    resumed = train(flags)
    assert straight.column("iteration") == [3, 4, 5, 6]
    assert resumed.column("iteration") == [5, 6]
    assert resumed.losses == straight.losses[2:]


@pytest.mark.parametrize("interface", ["learned", "binary", "lowdim"])
def test_the_padded_vocabulary_may_change_with_the_layout(train, same, interface):
    """Case 36: V = 500 has 504 rows at TP 1, 512 at TP 2; back at TP 1 all is as it was.

    The learning rate of 0 keeps the weights, so that the losses tell whether the rows are the same;
    padding rows take part in the softmax, which moves them by log(512 / 504) = 0.016.
    """
    flags = (
        f"{same} --input-interface {interface} --make-vocab-size-divisible-by 8 --train-iters 6 "
        "--use-distributed-optimizer --lr 0 --min-lr 0"
    )
    straight = train(flags.split("--save")[0] + flags.split("ck ")[2])
    train(f"{flags} --exit-interval 2")
    middle = train(f"{flags} --tensor-model-parallel-size 2 --exit-interval 4", ranks=2)
    last = train(flags)
    assert middle.losses == pytest.approx([x + 0.0157 for x in straight.losses[2:4]], abs=3e-3)
    assert last.losses == straight.losses[4:]


def test_sgd_goes_on_without_its_momentum(train, same):
    flags = f"{same} --train-iters 4 --optimizer sgd --no-save-optim"
    straight = train(f"{QUICK} --train-iters 4 --optimizer sgd")
    train(f"{flags} --exit-interval 2")
    resumed = train(flags)
    assert resumed.losses[0] == straight.losses[2]
    assert resumed.column("learning rate") == straight.column("learning rate")[2:]


# Batch sizes


def test_samples_are_counted_that_were_read(train, same):
    """Ten samples do not split into micro-batches of 4: eight are read an iteration."""
    batch = (
        "--train-iters 4 --global-batch-size 10 --micro-batch-size 4 "
        "--decrease-batch-size-if-needed"
    )
    straight = train(f"{QUICK} {batch}")
    first = train(f"{same} {batch} --exit-interval 2")
    second = train(f"{same} {batch}")
    assert straight.column("consumed samples") == [8, 16, 24, 32]
    assert first.losses + second.losses == straight.losses


def test_a_run_by_samples_never_reads_more_than_it_was_given(train):
    flags = f"{QUICK} --train-iters none --train-samples"
    run = train(f"{flags} 23")  # two batches of 8 fit
    assert run.column("consumed samples") == [8, 16]
    run = train(f"{flags} 64 --rampup-batch-size 2 2 16 --eval-iters 1 --eval-interval 1")
    # Steps of 2 every 16 / 3 samples, as Megatron counts them; 60 + 8 would be too many.
    assert run.column("global batch size") == [2, 2, 2, 4, 4, 6, 8, 8, 8, 8, 8]
    assert run.column("consumed samples")[-1] == 60


def test_an_evaluation_reads_the_same_samples_while_the_batch_size_ramps_up(train):
    """At a learning rate of 0 the model never changes: neither may its validation loss."""
    run = train(
        f"{QUICK} --train-iters none --train-samples 40 --rampup-batch-size 2 2 16 --eval-iters 1 "
        "--eval-interval 1 --lr 0 --min-lr 0"
    )
    assert len(set(run.column("lm loss", "validation"))) == 1


# Schedules: rates of the next update after each of ten iterations, worked out by hand


@pytest.mark.parametrize(
    "flags, expected",
    [
        (
            "--lr-decay-style WSD --lr-wsd-decay-style linear --lr-wsd-decay-iters 4",
            [0.5, 1, 1, 1, 1, 1, 0.775, 0.55, 0.325, 0.1],
        ),
        (
            "--lr-decay-style linear --lr-decay-iters 6",
            [0.5, 1, 0.775, 0.55, 0.325, 0.1, 0.1, 0.1, 0.1, 0.1],
        ),
        ("--lr-decay-style constant", [0.5] + 9 * [1]),
    ],
    ids=["wsd", "linear", "constant"],
)
def test_schedules(train, flags, expected):
    """Two iterations of warm-up to 1e-3; the lowest rate is 1e-4."""
    run = train(
        f"--eval-iters 0 --train-iters 10 --lr 1e-3 --min-lr 1e-4 --lr-warmup-iters 2 {flags}"
    )
    assert run.column("learning rate") == pytest.approx([1e-3 * x for x in expected], rel=1e-9)
