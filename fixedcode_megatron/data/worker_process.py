"""What `workers.WorkerPool` starts: the template, and the workers that it forks."""

from __future__ import annotations

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


def main() -> None:
    """Prepare the work, fork a worker for each pair of pipes, wait for them.

    Stdin is a socket, from which come pipes, two for each worker: of its requests and of its
    answers; then the work. The exit status of a worker that broke off is written to stdout.
    """
    sigterm = {signal.SIGTERM}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the parent's parent set
    signal.pthread_sigmask(signal.SIG_UNBLOCK, sigterm)
    from fixedcode_megatron.data.encoding import preload

    preload()  # while the parent prepares
    pairs: list[list[int]] = []
    try:
        with socket.socket(fileno=os.dup(0)) as control, control.makefile("rb") as stream:
            while True:
                kind, pair, _, _ = socket.recv_fds(control, 1, 2)
                if kind != MORE_PIPES:
                    break
                pairs.append(pair)
            make_function, arguments = receive(stream)
    except EOFError:
        return
    ends = [end for pair in pairs for end in pair]
    report = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not mix with the report
    gc.set_threshold(100_000)  # documents make many objects and no cycles
    function, failure = _make(make_function, arguments)
    remake = failure is None and not has_one_thread()
    workers: set[int] = set()
    signal.pthread_sigmask(signal.SIG_BLOCK, sigterm)  # an exception may be lost within a fork
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        for pair in pairs:
            worker = os.fork()
            if worker == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, sigterm)
                _close([report, *(end for end in ends if end not in pair)])
                if remake:  # a library's threads are not in the fork
                    function, failure = _make(make_function, arguments)
                _work(function, failure, *pair)
            workers.add(worker)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, sigterm)
        _close(ends)
        function = arguments = None  # the workers have theirs
        gc.collect()
        return_freed_memory()
        while workers:
            worker, status = os.wait()
            workers.remove(worker)
            if status:
                os.write(report, b"%d\n" % os.waitstatus_to_exitcode(status))
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        for worker in workers:
            os.waitpid(worker, 0)
        gc.freeze()  # nothing to look through once more at the end


def _make(
    make_function: Callable[..., Callable], arguments: tuple
) -> tuple[Callable | None, Exception | None]:
    try:
        return make_function(*arguments), None
    except Exception as error:
        return None, error


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _work(
    function: Callable[[Any], Any] | None, failure: Exception | None, requests: int, answers: int
) -> NoReturn:
    """Serve calls until the parent closes the pipe, or is gone."""
    status = 1
    try:
        with os.fdopen(requests, "rb") as source, os.fdopen(answers, "wb") as target:
            while True:
                item = receive(source)
                try:
                    if failure is not None:
                        raise failure
                    assert function is not None
                    answer = (True, function(item))
                except Exception as error:
                    answer = (False, error)
                send(target, answer)
    except (EOFError, BrokenPipeError):
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # not the template's clean-up


if __name__ == "__main__":
    main()
