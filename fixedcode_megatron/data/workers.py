"""An ordered pool of worker processes that notices when one of them dies.

One process, the template (see `interpreter`), loads what the work needs and then forks the workers:
they share it, and start at once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pickle
import signal
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

import numpy as np

from fixedcode_megatron.data.interpreter import (
    ask_to_end,
    end_interpreter,
    end_unused,
    take_interpreter,
)
from fixedcode_megatron.errors import UserError

_SIZE = struct.Struct("<Q")
MORE_PIPES, NO_MORE_PIPES = b"+", b"."  # to the template


def _send_pipes(control: socket.socket, ends: list[int]) -> None:
    """Hand over two descriptors; a system has a limit for those that nobody has received yet."""
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.send_fds(control, [MORE_PIPES], ends)
            return
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def available_cores() -> int:
    """Cores that this process may use (a container or a batch system may grant fewer)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkerDied(UserError):
    """A worker process was killed or broke off."""


class WorkerPool:
    """Worker processes. The template boots at once, or has done so, see `boot`.

    Parameters
    ----------
    workers
        Number of processes; 0 works in this one.

    Raises
    ------
    UserError
        If the system does not let so many be started.
    """

    def __init__(self, workers: int) -> None:
        try:
            self._template = _Template(workers) if workers else None
        except OSError as error:
            raise UserError(
                f"--workers {workers}: cannot be started ({error.strerror}): give fewer, or raise "
                "the limits that `ulimit -n` and `ulimit -u` show"
            ) from error
        end_unused()
        self._make: Callable[[], Callable[[Any], Any]] | None = None

    def start(self, make_function: Callable[..., Callable[[Any], Any]], arguments: tuple) -> None:
        """Name the work; the template goes on with it while the caller does other things.

        Parameters
        ----------
        make_function
            A function of a module; it returns what is called for each item. Where that has an
            attribute `is_spent`, and it is true after an item, another process takes the next one.
        arguments
            Its arguments, picklable.
        """
        self._make = lambda: make_function(*arguments)
        if self._template is not None:
            self._template.start((make_function, arguments))

    def close(self) -> None:
        """End all workers, and wait until they have."""
        if self._template is not None:
            self._template.end()

    def map(self, items: Iterable[Any]) -> Generator[Any, None, None]:
        """Yield the function's answer to every item, in the order of the items. Call it once.

        The workers begin to end after the last one; `close` waits for that.

        Parameters
        ----------
        items
            Consumed as needed: at most 3 per worker are under way at any time.

        Raises
        ------
        WorkerDied
            If a worker was killed or broke off.
        Exception
            Whatever the function, or the making of it, raised.
        """
        assert self._make is not None
        if self._template is None:
            function = self._make()
            for item in items:
                yield function(item)
            return
        workers = self._template.workers
        idle = deque(workers)  # popped and appended by threads; both are atomic
        executor = ThreadPoolExecutor(len(workers), thread_name_prefix="worker")

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
                if len(pending) >= 3 * len(workers):
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
            if pending:  # threads wait for their answers
                self._template.end()
            else:
                self._template.ask_to_end()
            executor.shutdown(wait=True, cancel_futures=True)


class _Template:
    """The interpreter that runs `worker_process.main`, and the pipes of the workers it forks."""

    def __init__(self, workers: int) -> None:
        self._process, self._control = take_interpreter()
        self.workers = [self._add_worker() for _ in range(workers)]
        self._ending: str | None = None
        self._asking = threading.Lock()

    def _add_worker(self) -> _Worker:
        (requests, to_worker), (from_worker, answers) = os.pipe(), os.pipe()
        with contextlib.suppress(ConnectionError):  # it ended; the first call says why
            _send_pipes(self._control, [requests, answers])
        os.close(requests)
        os.close(answers)
        return _Worker(self, to_worker, from_worker)

    def start(self, task: Any) -> None:
        with contextlib.suppress(ConnectionError), self._control.makefile("wb") as stream:
            stream.write(NO_MORE_PIPES)
            send(stream, task)

    def how_it_ended(self) -> str:
        """What became of the first worker that ended, or of the template itself."""
        with self._asking:  # the report has one line a death, and several threads may ask
            if self._ending is None:
                self._ending = self._read_ending()
            return self._ending

    def _read_ending(self) -> str:
        assert self._process.stdout is not None
        code = None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # what was printed while the interpreter started
                code = int(line)
                break
        if code is None:
            code = self._process.wait(timeout=30)
        if code < 0:
            name = signal.Signals(-code).name
            return f"was killed by {name} (out of memory?): run again, perhaps with fewer --workers"
        return f"ended with exit code {code}: see its message above"

    def ask_to_end(self) -> None:
        """Begin to end the workers; their callers hear of it."""
        ask_to_end(self._process, self._control)

    def end(self) -> None:
        """End the workers and wait for the template."""
        end_interpreter(self._process, self._control)


class _Worker:
    """The parent's ends of a worker's pipes."""

    def __init__(self, template: _Template, requests: int, answers: int) -> None:
        for end in (requests, answers):
            _widen(end)
        self._template = template
        self._requests, self._answers = os.fdopen(requests, "wb"), os.fdopen(answers, "rb")

    def call(self, item: Any) -> Any:
        """The function's answer to `item`."""
        try:
            send(self._requests, item)
            ok, value = receive(self._answers)
        except (BrokenPipeError, EOFError, ValueError) as error:
            how = self._template.how_it_ended()
            raise WorkerDied(f"a worker process {how}") from error
        if not ok:
            raise value
        return value


def _widen(pipe: int) -> None:
    """Let a pipe hold a megabyte, where the system can: fewer switches between processes."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)


def send(stream: IO[bytes], value: Any) -> None:
    """Write an object; arrays in it are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    parts: list[bytes | memoryview] = [head, *(buffer.raw() for buffer in buffers)]
    stream.write(_SIZE.pack(len(parts)))
    stream.write(b"".join(_SIZE.pack(len(part)) for part in parts))
    for part in parts:
        stream.write(part)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read an object that `send` wrote.

    Raises
    ------
    EOFError
        If the other side is gone.
    """
    (count,) = _SIZE.unpack(_read(stream, _SIZE.size))
    sizes = _read(stream, count * _SIZE.size)
    head, *buffers = (_read(stream, size) for (size,) in _SIZE.iter_unpack(sizes))
    return pickle.loads(head, buffers=buffers)


def _read(stream: IO[bytes], size: int) -> memoryview:
    data = np.empty(size, np.uint8).data  # not filled with zeros first, as a bytearray is
    if stream.readinto(data) < size:  # type: ignore[attr-defined]
        raise EOFError
    return data
