"""An ordered pool of worker processes that notices when one of them dies.

Workers are fresh interpreters that talk over pipes: nothing is forked, so no lock of a tokenizer's
threads is ever copied in a locked state, and the caller's main module is not imported again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from fixedcode_megatron.errors import UserError

_FRAME = struct.Struct("<Q")


def available_cores() -> int:
    """Cores that this process may use (a container or a batch system may grant fewer)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkerDied(UserError):
    """A worker process was killed or broke off."""


class WorkerPool:
    """Worker processes, started at once so that they boot while the caller prepares their work.

    Parameters
    ----------
    workers
        Number of processes; 0 works in this one.
    """

    def __init__(self, workers: int) -> None:
        self._workers = [_Worker() for _ in range(workers)]

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.end()

    def map(
        self,
        make_function: Callable[..., Callable[[Any], Any]],
        arguments: tuple,
        items: Iterable[Any],
    ) -> Generator[Any, None, None]:
        """Yield `make_function(*arguments)(item)` for every item, in the order of the items.

        Call it once.

        Parameters
        ----------
        make_function
            A function of a module, called once in each worker.
        arguments
            Its arguments, picklable.
        items
            Consumed as needed: at most 2 per worker are under way at any time.

        Raises
        ------
        WorkerDied
            If a worker was killed or broke off.
        Exception
            Whatever the function raised.
        """
        if not self._workers:
            function = make_function(*arguments)
            for item in items:
                yield function(item)
            return
        task = pickle.dumps((make_function, arguments), protocol=pickle.HIGHEST_PROTOCOL)
        idle = deque(self._workers)  # popped and appended by threads; both are atomic
        executor = ThreadPoolExecutor(len(self._workers), thread_name_prefix="worker")

        def call(item: Any) -> Any:
            worker = idle.popleft()
            try:
                return worker.call(task, item)
            finally:
                idle.append(worker)

        pending: deque[Future] = deque()
        try:
            for item in items:
                pending.append(executor.submit(call, item))
                if len(pending) >= 2 * len(self._workers):
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
            for worker in self._workers:
                worker.end()
            executor.shutdown(wait=True, cancel_futures=True)


class _Worker:
    """One interpreter that runs `main()` of this module."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "TOKENIZERS_PARALLELISM": "false",  # one thread per worker
            "RAYON_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fixedcode_megatron.data.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C goes to the parent, which ends the workers
        )
        for pipe in (self._process.stdin, self._process.stdout):
            _widen(pipe)
        self._lock = threading.Lock()
        self._has_task = False

    def call(self, task: bytes, item: Any) -> Any:
        """The function's answer to `item`; the worker builds the function at its first call."""
        try:
            if not self._has_task:
                self._send(task)
                self._has_task = True
            self._send(pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL))
            assert self._process.stdout is not None
            answer = _receive(self._process.stdout)
        except (BrokenPipeError, EOFError, ValueError) as error:
            raise WorkerDied(f"a worker process {self._how_it_ended()}") from error
        ok, value = pickle.loads(answer)
        if not ok:
            raise value
        return value

    def _send(self, payload: bytes) -> None:
        assert self._process.stdin is not None
        _send(self._process.stdin, payload)

    def _how_it_ended(self) -> str:
        code = self._process.wait(timeout=30)
        if code < 0:
            name = signal.Signals(-code).name
            return f"was killed by {name} (out of memory?): run again, perhaps with fewer --workers"
        return f"ended with exit code {code}: see its message above"

    def end(self) -> None:
        with self._lock:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()


def _widen(pipe: Any) -> None:
    """Let a pipe hold a megabyte, where the system can: fewer switches between processes."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)


def _send(stream: IO[bytes], payload: bytes) -> None:
    stream.write(_FRAME.pack(len(payload)))
    stream.write(payload)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    head = stream.read(_FRAME.size)
    if len(head) < _FRAME.size:
        raise EOFError
    (size,) = _FRAME.unpack(head)
    payload = stream.read(size)
    if len(payload) < size:
        raise EOFError
    return payload


def main() -> None:
    """Serve calls until the parent closes the pipe, or is gone."""
    import fixedcode_megatron.data.encoding  # noqa: F401  (while the parent prepares)

    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers
    function: Callable | None = None
    failure: Exception | None = None
    try:
        make_function, arguments = pickle.loads(_receive(requests))
    except EOFError:
        return
    try:
        function = make_function(*arguments)
    except Exception as error:
        failure = error
    while True:
        try:
            item = pickle.loads(_receive(requests))
        except EOFError:
            return
        try:
            if failure is not None:
                raise failure
            assert function is not None
            answer = (True, function(item))
        except Exception as error:
            answer = (False, error)
        try:
            _send(answers, pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL))
        except BrokenPipeError:
            return


if __name__ == "__main__":
    main()
