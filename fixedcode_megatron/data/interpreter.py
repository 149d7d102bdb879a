"""The process that becomes a pool's template: a fork of this one, or a fresh interpreter.

A program can be forked while it has one thread and has loaded nothing but what the template needs
as well: then that is there at once, and once in memory. `boot` does so. Anything else gets a fresh
interpreter: no lock of a thread is copied in a locked state, and no main module is run again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, NoReturn

_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",  # one thread per worker
    "RAYON_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class _Fork:
    """A forked process, with what of `subprocess.Popen` is needed here."""

    def __init__(self, pid: int, stdout: IO[bytes]) -> None:
        self.pid, self.stdout = pid, stdout
        self._descriptor = os.pidfd_open(pid)
        self._exit_code: int | None = None
        self._reaping = threading.Lock()  # several threads may wait

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)

    def wait(self, timeout: float | None = None) -> int:
        if not select.select([self._descriptor], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a fork", timeout or 0)
        with self._reaping:
            if self._exit_code is None:
                self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._exit_code

    def __enter__(self) -> _Fork:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        self.stdout.close()
        os.close(self._descriptor)


Interpreter = tuple["subprocess.Popen | _Fork", socket.socket]  # with a socket to its stdin
_booted: list[Interpreter] = []


def boot() -> None:
    """Begin with the next pool's template, before the caller imports what takes its time."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `run_tool`: no traceback of an import
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads begin by spinning
    from fixedcode_megatron.data import encoding, worker_process  # noqa: F401  (what it needs)

    with contextlib.suppress(OSError):  # the pool tries again, and says why
        _booted.append(_fork() if _may_fork() else start_interpreter())


def take_interpreter() -> Interpreter:
    """The one that was booted, or a fresh one."""
    return _booted.pop() if _booted else start_interpreter()


def end_unused() -> None:
    """End what was booted and nobody took."""
    while _booted:
        process, control = _booted.pop()
        with process:
            end_interpreter(process, control)


def start_interpreter() -> Interpreter:
    """A fresh interpreter that runs `worker_process.main`."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fixedcode_megatron.data.worker_process"],
            stdin=theirs.fileno(),
            stdout=subprocess.PIPE,
            env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C goes to the parent, which ends the workers
        )
    return process, ours


def ask_to_end(process: subprocess.Popen | _Fork, control: socket.socket) -> None:
    """Let an interpreter end what it forked, and itself. It is asked once, whoever calls again."""
    if control.fileno() >= 0:
        control.close()  # where SIGTERM is ignored, and it has no handler yet, this ends it
        process.terminate()


def end_interpreter(process: subprocess.Popen | _Fork, control: socket.socket) -> None:
    """End an interpreter, which ends and reaps what it forked, and wait for it."""
    ask_to_end(process, control)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def has_one_thread() -> bool:
    """Whether this process is known to have no threads but its first."""
    tasks = Path("/proc/self/task")
    return tasks.is_dir() and len(list(tasks.iterdir())) == 1


def _may_fork() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return has_one_thread()


def _fork() -> Interpreter:
    """A fork of this process that runs `worker_process.main`."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a standard stream that was closed: nothing else must get its number
    os.close(spare)
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    reports, to_reports = os.fdopen(read, "rb"), os.fdopen(write, "wb")
    with theirs, to_reports:
        pid = os.fork()
        if pid == 0:
            _run(theirs, to_reports, (ours, reports))
    return _Fork(pid, reports), ours


def _run(control: socket.socket, reports: IO[bytes], others: Iterable[Any]) -> NoReturn:
    status = 1
    try:
        os.dup2(control.fileno(), 0)
        os.dup2(reports.fileno(), 1)
        for stream in (control, reports, *others):
            stream.close()
        os.setsid()  # as above
        os.environ.update(_ENVIRONMENT)
        from fixedcode_megatron.data import worker_process

        worker_process.main()
        status = 0
    except SystemExit:
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # not the clean-up of the program that was forked
