"""Trains one model as a program of its own, which Ctrl-C ends cleanly."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import deque
from types import FrameType
from typing import IO, Any

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.jobs.job import Job
from fixedcode_megatron.jobs.progress import TrainingView
from fixedcode_megatron.training.checkpoint_files import read_tracker
from fixedcode_megatron.training.metrics_file import METRICS_FILE, read_history

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal ended the work; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def trained_iterations(job: Job) -> int:
    """Iterations in the newest checkpoint of a job; 0 where it has none."""
    return (read_tracker(job.checkpoints) if job.checkpoints.is_dir() else None) or 0


def is_finished(job: Job) -> bool:
    """Whether nothing is left to train: the last checkpoint and all figures are there."""
    history = read_history(job.folder / METRICS_FILE)
    return trained_iterations(job) >= job.train_iters and history.has_ended(job.train_iters)


def train(job: Job, title: str, view: TrainingView, lock: IO[bytes]) -> None:
    """Train a job to its end, continuing from its newest checkpoint.

    Parameters
    ----------
    title, view
        Where and under which name to show progress.
    lock
        The claim on the run folder. The training program holds it too, so that nobody starts a
        second one beside it should this program be killed.

    Raises
    ------
    Interrupted
        After a signal; the training program has saved a checkpoint and ended.
    UserError
        If it ended before its last iteration, with the end of its log.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    view.start(title, trained_iterations(job), job.train_iters)
    log_path = job.folder / "train.log"
    tail: deque[str] = deque(maxlen=15)
    with (
        SignalRelay() as relay,
        # In a process group of its own: Ctrl-C reaches this program alone, which passes it on once
        # (a second one would end the training before its checkpoint is written).
        subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
            pass_fds=(lock.fileno(),),
        ) as process,
        log_path.open("a", encoding="utf-8") as log,
    ):
        relay.attach(process)
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            log.flush()
            if not view.feed(line):
                tail.append(line.rstrip())
    view.finish()
    if relay.received:
        raise Interrupted(relay.received)
    if process.returncode or not is_finished(job):
        told = "\n".join(tail)
        raise UserError(
            f"{told}\ntraining of {job.name} ended with status {process.returncode} at "
            f"iteration {trained_iterations(job)} of {job.train_iters}; its whole log is {log_path}"
        )


class SignalRelay:
    """While active, passes the signals that ask this program to end on to another one.

    Attributes
    ----------
    received
        The first signal that arrived, or 0.
    """

    def __init__(self) -> None:
        self.received = 0
        self._process: subprocess.Popen[str] | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> SignalRelay:
        self._previous = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        return self

    def __exit__(self, *_exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def attach(self, process: subprocess.Popen[str]) -> None:
        """Name the program; a signal that came before it started is passed on now."""
        self._process = process
        if self.received:
            self._send(self.received)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if not self.received:
            # Not print: the signal may have come in the middle of one.
            os.write(1, b"\n  stopping: a checkpoint is saved first\n")
        self.received = self.received or number
        self._send(number)

    def _send(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                # A closed terminal asks for the same clean end.
                self._process.send_signal(
                    signal.SIGTERM if number == signal.SIGHUP else signal.Signals(number)
                )
