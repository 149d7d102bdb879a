"""Trains models as programs of their own, which Ctrl-C ends cleanly."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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


def train_all(
    jobs: Sequence[Job], view: TrainingView, lock: IO[bytes], *, at_once: int = 1
) -> None:
    """Train jobs to their ends, each continuing from its newest checkpoint.

    Parameters
    ----------
    view
        Where to show progress.
    lock
        The claim on the run folder. The training programs hold it too, so that nobody starts a
        second one beside them should this program be killed.
    at_once
        Training programs that run beside each other; they share this machine's cores evenly.

    Raises
    ------
    Interrupted
        After a signal; the training programs have saved checkpoints and ended.
    UserError
        If one ended before its last iteration, with the end of its log; the others have been
        asked to end, too.
    """
    environment = dict(os.environ)
    if at_once > 1:
        cores = len(os.sched_getaffinity(0))
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // at_once)))
    problems: list[str] = []

    def work(number: int, job: Job) -> None:
        if relay.stopping:
            return
        title = f"[{number}/{len(jobs)}] {job.name}" if len(jobs) > 1 else job.name
        try:
            status, tail = _run(job, title, view, lock, relay, environment)
        except BaseException:
            relay.stop()
            raise
        if not relay.stopping and (status or not is_finished(job)):
            relay.stop()
            problems.append(
                f"{tail}\ntraining of {job.name} ended with status {status} at iteration "
                f"{trained_iterations(job)} of {job.train_iters}; its whole log is {_log(job)}"
            )

    with SignalRelay() as relay, ThreadPoolExecutor(at_once) as pool:
        # The handlers of signals run here, in the main thread, while it waits.
        for ended in [pool.submit(work, number, job) for number, job in enumerate(jobs, start=1)]:
            ended.result()
    view.clear()
    if relay.received:
        raise Interrupted(relay.received)
    if problems:
        raise UserError(problems[0])


def _run(
    job: Job,
    title: str,
    view: TrainingView,
    lock: IO[bytes],
    relay: SignalRelay,
    environment: Mapping[str, str],
) -> tuple[int, str]:
    """Run a training program; returns its status and the end of what it said."""
    job.folder.mkdir(parents=True, exist_ok=True)
    shown = view.start(title, trained_iterations(job), job.train_iters)
    tail: deque[str] = deque(maxlen=15)
    with (
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
            env=environment,
        ) as process,
        _log(job).open("a", encoding="utf-8") as log,
        relay.reaching(process),
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            log.flush()
            if not shown.feed(line):
                tail.append(line.rstrip())
    return process.returncode, "\n".join(tail)


def _log(job: Job) -> Path:
    return job.folder / "train.log"


class SignalRelay:
    """While active, passes the signals that ask this program to end on to others.

    Attributes
    ----------
    received
        The first signal that arrived, or 0.
    stopping
        Whether the programs have been asked to end.
    """

    def __init__(self) -> None:
        self.received = 0
        self.stopping = False
        self._processes: list[subprocess.Popen[str]] = []
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> SignalRelay:
        self._previous = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        return self

    def __exit__(self, *_exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def reaching(self, process: subprocess.Popen[str]) -> Iterator[None]:
        """Reach a program; what came before it was started is passed on now."""
        self._processes.append(process)
        try:
            if self.stopping:
                self._send(process)
            yield
        finally:
            self._processes.remove(process)

    def stop(self) -> None:
        """Ask the programs to end, with their checkpoints saved."""
        self.stopping = True
        for process in list(self._processes):
            self._send(process)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if not self.received:
            # Not print: the signal may have come in the middle of one.
            os.write(1, b"\n  stopping: a checkpoint is saved first\n")
        self.received = self.received or number
        self.stop()

    def _send(self, process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(ProcessLookupError):
            # A closed terminal, and a problem elsewhere, ask for the same clean end.
            process.send_signal(signal.SIGINT if self.received == signal.SIGINT else signal.SIGTERM)
