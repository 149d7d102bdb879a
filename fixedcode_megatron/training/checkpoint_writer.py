"""How one rank's part of a checkpoint gets to disk: at once, or in a fork while training goes on.

megatron-core plans what each rank writes and collects the outcome. Its own writers are replaced,
because of what happens when a rank dies while it writes: their processes outlive it, with its
sockets open, so that its peers do not notice.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import queue
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_fork = multiprocessing.get_context("fork")


def install() -> None:
    """Make megatron-core write with this module's functions; safe to call twice."""
    for name in ("_get_write_results_queue", "get_write_results_queue"):
        if hasattr(filesystem_async, name):
            setattr(filesystem_async, name, lambda *_args: queue.Queue())
    writer = filesystem_async.FileSystemWriterAsync
    for name in ("write_preloaded_data_multiproc", "write_preloaded_data_multithread"):
        if hasattr(writer, name):
            setattr(writer, name, staticmethod(_write_files))


def _write_files(
    transforms: list[Any], use_msc: bool, rank: int, files: list[Any], results: queue.Queue[Any]
) -> None:
    """Write this rank's files, one thread each; puts their results, or the first exception."""

    def write(index: int) -> tuple[int, Any]:
        outcome: queue.Queue[Any] = queue.Queue()
        running: queue.Queue[Any] = queue.Queue()
        running.put(index)  # megatron-core takes it back when the file is done
        filesystem_async.FileSystemWriterAsync.write_preloaded_data(
            transforms, index, files[index], outcome, running, True, use_msc=use_msc
        )
        return outcome.get()

    with ThreadPoolExecutor(len(files)) as pool:
        written = dict(pool.map(write, range(len(files))))
    failures = (
        _cause(result, files[index][0])
        for index, result in written.items()
        if isinstance(result, Exception)
    )
    results.put(next(failures, written))


def _cause(error: Exception, path: str) -> Exception:
    """What went wrong in the file system: torch covers it with a complaint about positions."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return error if cause is None else OSError(cause.errno, cause.strerror, path)


class BackgroundWriter:
    """A fork of this process that writes its part of a checkpoint; the fork is the snapshot.

    Parameters
    ----------
    request
        What `dist_checkpointing.save(..., async_sharded_save=True)` returned. Tensors on a GPU are
        copied to the host before the constructor returns; those on the CPU are shared with the
        fork until training writes to them.
    """

    def __init__(self, request: AsyncRequest) -> None:
        self._process: Any = None
        if request.async_fn is None:
            return  # nothing of the state is this rank's to write
        self._results = request.async_fn_args[2]
        files = request.preload_fn()
        self._receiver, sender = _fork.Pipe(duplex=False)
        self._process = _fork.Process(
            target=_write_and_report, args=(request.async_fn, files, sender), daemon=True
        )
        self._process.start()
        sender.close()

    def is_done(self) -> bool:
        """Whether the fork has written everything, failed, or died."""
        return self._process is None or self._receiver.poll()

    def finish(self) -> None:
        """Wait for the fork and hand its outcome to megatron-core's finalisation."""
        if self._process is None:
            return
        try:
            outcome = self._receiver.recv()
        except EOFError:
            self._process.join()
            outcome = RuntimeError(f"the writing process ended with {self._process.exitcode}")
        self._process.join()
        self._receiver.close()
        self._results.put(outcome)


def _write_and_report(write: Any, files: list[Any], sender: Connection) -> None:
    _die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to whole jobs; the parent decides
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # it might free what belongs to the parent's CUDA context
    results: queue.Queue[Any] = queue.Queue()
    write(dist.get_rank(), files, results)
    outcome = results.get()
    if isinstance(outcome, Exception):  # others may not survive the pipe
        outcome = RuntimeError(str(outcome))
    sender.send(outcome)


def _die_with_parent() -> None:
    """End this process when its parent does (Linux; elsewhere it writes to its end)."""
    if sys.platform != "linux":
        return
    parent = multiprocessing.parent_process()
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if parent is not None and os.getppid() != parent.pid:
        os._exit(1)
