"""An ordered pool of worker processes that notices when one of them dies.

Workers are fresh interpreters that talk over pipes: nothing is forked, so no lock of a tokenizer's
threads is ever copied in a locked state, and the caller's main module is not imported again.
"""

from __future__ import annotations

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


def ordered_map(
    make_function: Callable[..., Callable[[Any], Any]],
    arguments: tuple,
    items: Iterable[Any],
    workers: int,
) -> Generator[Any, None, None]:
    """Yield `make_function(*arguments)(item)` for every item, in the order of the items.

    Parameters
    ----------
    make_function
        A function of a module, called once in each worker.
    arguments
        Its arguments, picklable.
    items
        Consumed as needed: at most 2 per worker are under way at any time.
    workers
        Number of processes; 0 works in this one.

    Raises
    ------
    UserError
        If a worker was killed or broke off.
    Exception
        Whatever the function raised.
    """
    if workers == 0:
        function = make_function(*arguments)
        for item in items:
            yield function(item)
        return
    pool = [_Worker(make_function, arguments) for _ in range(workers)]
    idle = deque(pool)  # popped and appended by threads; both are atomic
    executor = ThreadPoolExecutor(workers, thread_name_prefix="worker")

    def call(item: Any) -> Any:
        worker = idle.popleft()
        try:
            return worker.call(item)
        finally:
            idle.append(worker)

    pending: deque[Future] = deque()
    try:
        for item in items:
            pending.append(executor.submit(call, item))
            if len(pending) >= 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
        for worker in pool:
            worker.end()
        executor.shutdown(wait=True, cancel_futures=True)


class _Worker:
    """One interpreter that runs `main()` of this module."""

    def __init__(self, make_function: Callable, arguments: tuple) -> None:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "TOKENIZERS_PARALLELISM": "false",  # one thread per worker
            "RAYON_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fixedcode_megatron.data.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C goes to the parent, which ends the workers
        )
        self._lock = threading.Lock()
        self._send((make_function, arguments))

    def call(self, item: Any) -> Any:
        try:
            self._send(item)
            assert self._process.stdout is not None
            answer = _receive(self._process.stdout)
        except (BrokenPipeError, EOFError, ValueError) as error:
            raise UserError(f"a worker process {self._how_it_ended()}") from error
        ok, value = pickle.loads(answer)
        if not ok:
            raise value
        return value

    def _send(self, value: Any) -> None:
        assert self._process.stdin is not None
        try:
            _send(self._process.stdin, pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
        except BrokenPipeError as error:
            raise UserError(f"a worker process {self._how_it_ended()}") from error

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
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers
    function: Callable | None = None
    failure: Exception | None = None
    make_function, arguments = pickle.loads(_receive(requests))
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
