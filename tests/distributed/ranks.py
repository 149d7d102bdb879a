"""Run a function on several gloo ranks, each a process forked from a server that has torch loaded.

A cold import of torch and megatron-core takes longer than most cases; the server (the standard
library's `forkserver`) pays for it once a test session.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.distributed.preload"])


class RankError(AssertionError):
    """A rank raised, died or took too long; the message holds every rank's traceback or fate."""


def run_ranks(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = 150,
    output: Path | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Call `function(*args, **kwargs)` on `world_size` ranks; returns their results by rank.

    Parameters
    ----------
    function
        A module-level function. The default process group exists when it is called.
    output
        Folder for each rank's standard output and error (rank0.log, ...).
    """
    folder = Path(tempfile.mkdtemp(prefix="ranks-")) if output is None else output
    folder.mkdir(parents=True, exist_ok=True)
    rendezvous = folder / f"rendezvous-{time.monotonic_ns()}"
    processes, pipes = [], []
    for rank in range(world_size):
        receiver, sender = _context.Pipe(duplex=False)
        process = _context.Process(
            target=_rank,
            args=(rank, world_size, str(rendezvous), str(folder), sender, function, args, kwargs),
        )
        process.start()
        sender.close()
        processes.append(process)
        pipes.append(receiver)
    try:
        return _collect(pipes, timeout, folder)
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _collect(pipes: list[Connection], timeout: float, folder: Path) -> list[Any]:
    deadline = time.monotonic() + timeout
    results: dict[int, Any] = {}
    failures: dict[int, str] = {}
    waiting = {pipe: rank for rank, pipe in enumerate(pipes)}
    while waiting and time.monotonic() < deadline:
        for pipe in wait(list(waiting), timeout=1):
            rank = waiting.pop(pipe)  # type: ignore[arg-type]
            try:
                ok, value = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                (results if ok else failures)[rank] = value
            except EOFError:
                failures[rank] = "died"
        if failures:  # the others have lost a peer: give them a moment to say so
            deadline = min(deadline, time.monotonic() + 10)
    failures |= dict.fromkeys(waiting.values(), "no answer in time")
    if failures:
        told = "\n".join(f"rank {rank}: {text}" for rank, text in sorted(failures.items()))
        logs = "\n".join(f"{p.name}: {p.read_text()[-3000:]}" for p in sorted(folder.glob("*.log")))
        raise RankError(f"{told}\n{logs}")
    return [results[rank] for rank in range(len(pipes))]


def _rank(
    rank: int,
    world_size: int,
    rendezvous: str,
    folder: str,
    pipe: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    import torch
    import torch.distributed as dist

    environment = dict(RANK=rank, WORLD_SIZE=world_size, LOCAL_RANK=rank)
    environment |= dict(LOCAL_WORLD_SIZE=world_size, OMP_NUM_THREADS=1)
    os.environ.update({name: str(value) for name, value in environment.items()})
    log = os.open(f"{folder}/rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)  # the variable came too late for the library that reads it
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=60),
        )
        answer = (True, function(*args, **kwargs))
    except BaseException:
        answer = (False, traceback.format_exc())
    # Pickled here: multiprocessing would share a tensor's memory, which ends with this process.
    pipe.send_bytes(pickle.dumps(answer))
    pipe.close()
    os._exit(0)
