"""What `workers.WorkerPool` starts: the template, and the workers that it forks."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from fixedcode_megatron.data.interpreter import has_one_thread
from fixedcode_megatron.data.memory import return_freed_memory
from fixedcode_megatron.data.workers import MORE_PIPES, receive, send

_Pipes = list[int]  # of a worker's requests and of its answers
_SPENT = 75  # exit status of a worker in whose place another is to be forked
_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}


def main() -> None:
    """Prepare the work, fork a worker for each pair of pipes, wait for them.

    Stdin is a socket, from which come pipes, two for each worker; then the work. Where a worker's
    function says that it `is_spent`, another takes its place, with the same pipes and all that was
    loaded before the first was forked. The exit status of a worker that broke off is written to
    stdout, and its pipes are closed.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the parent's parent set
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    from fixedcode_megatron.data.encoding import preload

    preload()  # while the parent prepares
    pairs: list[_Pipes] = []
    try:
        with socket.socket(fileno=os.dup(0)) as control, control.makefile("rb") as stream:
            while True:
                kind, pair, _, _ = socket.recv_fds(control, 1, 2)
                if kind != MORE_PIPES:
                    break
                pairs.append(pair)
            task = receive(stream)
    except EOFError:
        return
    report = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not mix with the report
    gc.set_threshold(100_000)  # documents make many objects and no cycles
    forks = _Forks(pairs, task, report)
    gc.freeze()  # looking through all objects would copy their memory into each worker
    forks.run()


class _Forks:
    """The work, loaded once, and the workers that were forked to do it."""

    def __init__(self, pairs: list[_Pipes], task: tuple, report: int) -> None:
        self._pairs, self._task, self._report = pairs, task, report
        self._workers: dict[int, _Pipes] = {}
        self._function: Callable[[Any], Any] | None = None
        self._failure: Exception | None = None
        self._make()
        self._remake = self._failure is None and not has_one_thread()
        if self._remake:  # a library's threads are not in a fork
            self._function = None
            return_freed_memory()

    def _make(self) -> None:
        make_function, arguments = self._task
        try:
            self._function = make_function(*arguments)
        except Exception as error:
            self._failure = error

    def run(self) -> None:
        """Until the last worker has ended, or a signal tells to end them all."""
        # Taken by `sigwait` alone: an exception of a handler may be lost within a fork.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler some systems drop it
        try:
            for pipes in self._pairs:
                self._fork(pipes)
            while self._workers and signal.sigwait(_SIGNALS) != signal.SIGTERM:
                self._replace()
        finally:
            for worker in self._workers:
                os.kill(worker, signal.SIGKILL)
            for worker in self._workers:
                os.waitpid(worker, 0)

    def _replace(self) -> None:
        """Look after the workers that have ended."""
        for worker in list(self._workers):
            ended, status = os.waitpid(worker, os.WNOHANG)
            if not ended:
                continue
            pipes = self._workers.pop(worker)
            code = os.waitstatus_to_exitcode(status)
            if code == _SPENT:
                self._fork(pipes)
                continue
            if code:
                self._tell(code)
            self._pairs.remove(pipes)
            _close(pipes)

    def _tell(self, code: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone
            os.write(self._report, b"%d\n" % code)

    def _fork(self, pipes: _Pipes) -> None:
        try:
            worker = os.fork()
        except OSError as error:
            print(f"a worker process cannot be started: {error.strerror}", file=sys.stderr)
            self._tell(1)
            sys.exit(1)
        if worker:
            self._workers[worker] = pipes
            return
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        _close([self._report, *(end for pair in self._pairs if pair is not pipes for end in pair)])
        if self._remake:
            self._make()
        _work(self._function, self._failure, *pipes)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _work(
    function: Callable[[Any], Any] | None, failure: Exception | None, requests: int, answers: int
) -> NoReturn:
    """Serve calls until the parent closes the pipe, or is gone, or the function is spent."""
    status = 1
    try:
        with os.fdopen(requests, "rb") as source, os.fdopen(answers, "wb") as target:
            while not getattr(function, "is_spent", False):
                item = receive(source)
                try:
                    if failure is not None:
                        raise failure
                    assert function is not None
                    answer = (True, function(item))
                except Exception as error:
                    answer = (False, error)
                send(target, answer)
            status = _SPENT
    except (EOFError, BrokenPipeError):
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # not the template's clean-up


if __name__ == "__main__":
    main()
