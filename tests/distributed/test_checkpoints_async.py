"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import errno
import os
import re
import time
from pathlib import Path

import pytest
import torch

from fixedcode_megatron.training.checkpoint_files import (
    TRACKER,
    checkpoint_path,
    partial_path,
    whole_iterations,
)
from tests.distributed import cases, checkpoint_cases
from tests.distributed.ranks import RankError, run_ranks

pytestmark = pytest.mark.distributed

QUICK = "--eval-interval 100 --eval-iters 0 --lr-warmup-iters 0 --use-distributed-optimizer"


@pytest.fixture
def argv(base_flags, tmp_path):
    """A run of 8 iterations that saves every 4th in the background."""
    flags = (
        f"{QUICK} --save {tmp_path / 'ck'} --load {tmp_path / 'ck'} --run-dir {tmp_path / 'run'} "
        "--train-iters 8 --save-interval 4 --async-save"
    )
    return [*base_flags, *flags.split()]


@pytest.fixture(scope="module")
def straight(train, tmp_path_factory):
    """The same run with every checkpoint written at once."""
    folder = tmp_path_factory.mktemp("straight")
    run = train(f"{QUICK} --train-iters 8 --save {folder} --save-interval 4", ranks=2)
    return folder, run


def log_of(folder: Path, rank: int = 0) -> str:
    return (folder / f"rank{rank}.log").read_text()


def same_tensors(one: Path, other: Path) -> bool:
    [(a, b)] = run_ranks(1, checkpoint_cases.tensors_of, [one, other])
    assert a.keys() == b.keys() and len(a) > 20
    return all(torch.equal(a[key], b[key]) for key in a)


def test_a_snapshot_is_that_of_its_iteration_and_published_when_it_is_written(
    straight, argv, tmp_path
):
    """The next checkpoint waits for the one before, the end for the last one."""
    both = run_ranks(2, checkpoint_cases.run_with_slow_writer, [*argv, "--log-interval", "1"], 0.5)
    assert both[0] == both[1]
    (first, reached, tracked), (last, end, then) = both[0]
    assert (first, tracked) == (4, None)
    assert reached > 4  # training went on; and the tracker had not moved
    assert (last, end, then) == (8, 8, 4)
    for iteration in (4, 8):
        written, expected = (checkpoint_path(f, iteration) for f in (tmp_path / "ck", straight[0]))
        assert same_tensors(written, expected)


@pytest.mark.slow
def test_old_checkpoints_go_when_the_new_one_is_whole(argv, tmp_path):
    run_ranks(2, cases.run_main, [*argv, "--keep-last-checkpoints", "1"])
    assert {p.name for p in (tmp_path / "ck").iterdir()} == {"iter_0000008", TRACKER}


def recovers(argv, tmp_path, straight):
    """The next run goes on from iteration 4 and ends as the undisturbed one."""
    checkpoints = tmp_path / "ck"
    assert (checkpoints / TRACKER).read_text() == "4\n"
    assert run_ranks(2, cases.run_main, argv, output=tmp_path / "next") == [0, 0]
    assert re.search("continuing from .*iter_0000004, iteration 4", log_of(tmp_path / "next"))
    assert {p.name for p in checkpoints.iterdir()} == {"iter_0000004", "iter_0000008", TRACKER}
    assert same_tensors(checkpoint_path(checkpoints, 8), checkpoint_path(straight[0], 8))


@pytest.fixture
def to_four(argv, tmp_path):
    """Flags of the run, whose checkpoint of iteration 4 is there."""
    assert run_ranks(2, cases.run_main, [*argv, "--exit-interval", "4"]) == [0, 0]
    return argv


@pytest.mark.parametrize(
    "how", ["--async-save", pytest.param("--no-async-save", marks=pytest.mark.slow)]
)
def test_a_disk_that_is_full_when_the_tracker_should_move(to_four, straight, tmp_path, how):
    """Case 29: make only the pointer's write fail."""
    argv = [*to_four, how]
    function = checkpoint_cases.run_with_unwritable_tracker
    assert run_ranks(2, function, argv, iteration=8, output=tmp_path) == [2, 2]
    for word in (str(tmp_path / "ck" / TRACKER), "iteration 8 could not be", "of iteration 4"):
        assert word in log_of(tmp_path)
    recovers(argv, tmp_path, straight)


@pytest.mark.slow
def test_a_file_that_does_not_fit_on_the_disk(to_four, straight, tmp_path):
    """Case 29. The writing fork reports what happened; what was there stays."""
    assert run_ranks(2, cases.with_small_files, to_four, output=tmp_path) == [2, 2]
    for word in ("iteration 8 could not be written", os.strerror(errno.EFBIG), "of iteration 4"):
        assert word in log_of(tmp_path)
    assert "Traceback" not in log_of(tmp_path)
    recovers(to_four, tmp_path, straight)


def test_a_writer_that_is_killed(argv, straight, tmp_path):
    """The out-of-memory killer may choose it; nothing is published."""
    argv = [*argv, "--save-interval", "2"]
    function = checkpoint_cases.run_with_killed_writer
    assert run_ranks(2, function, argv, victim=1, output=tmp_path) == [2, 2]
    assert "the writing process ended with -9" in log_of(tmp_path)
    assert whole_iterations(tmp_path / "ck") == [2]


def test_a_rank_that_is_killed_while_forks_write(argv, tmp_path):
    """Case 29: stop before finalisation. Nobody waits for a dead rank's fork, or is left behind."""
    argv = [*argv, "--save-interval", "2"]
    started = time.monotonic()
    with pytest.raises(RankError, match="rank 1: died"):
        run_ranks(2, checkpoint_cases.run_killed_while_writing, argv, victim=1, output=tmp_path)
    assert time.monotonic() - started < 60
    assert (tmp_path / "ck" / TRACKER).read_text() == "2\n"
    assert partial_path(tmp_path / "ck", 4).is_dir()
    assert run_ranks(2, cases.run_main, argv, output=tmp_path / "next") == [0, 0]
    assert ".iter_0000004.partial was never finished" in log_of(tmp_path / "next")
    assert whole_iterations(tmp_path / "ck") == [2, 4, 6, 8]
