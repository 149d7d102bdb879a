"""Ends a job that no longer gets on, and says where each rank stood.

A thread of every rank looks at that rank's phase. When it has not changed for the time limit, the
rank says so, writes the stacks of all its threads to standard error and tells the others through
the rendezvous store; rank 0 adds which ranks stood in which phase; all processes end.

The same thread watches the process of the next rank on this host, because NCCL does not notice
when a peer on the same host is gone. (gloo does: the collective under way fails at once.)
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from fixedcode_megatron.errors import TrainingError
from fixedcode_megatron.training.phases import Phases

if TYPE_CHECKING:
    from fixedcode_megatron.training.trainer import Trainer

logger = logging.getLogger(__name__)

EXIT_STATUS = 124
"""Of a process that hung, as `timeout` has it."""
EXIT_STATUS_LOST = 1
TICK_SECONDS = 2.0
_GLOO_LOST = ("closed by peer", "reset by peer", "Broken pipe", "imed out", "Socket closed")
GATHER_SECONDS = 20.0
"""How long rank 0 waits for the others' reports."""


@contextlib.contextmanager
def supervised(trainer: Trainer) -> Iterator[None]:
    """End the job with a message that says where, when a rank hangs or dies inside the context.

    Raises
    ------
    TrainingError
        If a collective fails because another rank is gone.
    """
    minutes = trainer.cfg.runtime.hang_timeout_minutes
    assert minutes is not None
    rank, world_size = trainer.runtime.rank, trainer.runtime.world_size
    watch = HangWatch(trainer.phases, rank=rank, world_size=world_size, timeout=60 * minutes)
    try:
        with watch:
            yield
    except RuntimeError as error:
        if not is_lost_contact(error):
            raise
        raise TrainingError(
            f"rank {rank}: lost contact with another rank in {trainer.phases}: it has died (its "
            f"own messages say why) or cannot be reached ({str(error).splitlines()[0]})"
        ) from error


def is_lost_contact(error: RuntimeError) -> bool:
    """Whether an error says that a peer is gone: NCCL's and the store's types, and gloo's texts."""
    if isinstance(error, dist.DistBackendError | dist.DistNetworkError):
        return True
    text = str(error)
    return "gloo" in text and any(word in text for word in _GLOO_LOST)


class HangWatch:
    """Watches this rank and its neighbour while the context is open; every rank must open it.

    Parameters
    ----------
    phases
        What this rank is doing; read from the watching thread.
    timeout
        Seconds without a change of phase that count as hanging.
    """

    def __init__(self, phases: Phases, *, rank: int, world_size: int, timeout: float) -> None:
        self._phases, self._rank, self._world_size = phases, rank, world_size
        self._timeout = timeout
        self._tick = min(TICK_SECONDS, timeout / 10)
        self._leave = threading.Event()
        self._store: Any = dist.PrefixStore(
            "hang-watch", dist.distributed_c10d._get_default_store()
        )
        self._neighbour: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._watch, name="hang watch", daemon=True)

    def __enter__(self) -> HangWatch:
        here: list[Any] = [None] * self._world_size
        dist.all_gather_object(here, (socket.gethostname(), os.getpid()))
        found = neighbour(here, self._rank)
        # Containers may share a host's name and not its process ids.
        self._neighbour = found if found is not None and is_running(found[1]) else None
        self._phases.changed = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._leave.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        if kind is None:
            # Nobody may leave, and look lost, while another one watches still.
            dist.barrier()

    def _watch(self) -> None:
        while not self._leave.wait(self._tick):
            # Should another thread keep the interpreter's lock for good, this one cannot act.
            faulthandler.dump_traceback_later(2 * self._timeout + 60, exit=True)
            idle = time.monotonic() - self._phases.changed
            if idle > self._timeout:
                self._report_hang(idle)
            lost = self._lost_rank()
            if lost is not None:
                self._report_loss(lost)

    def _report_hang(self, idle: float) -> None:
        faulthandler.dump_traceback_later(2 * GATHER_SECONDS, exit=True)
        phase = self._phases.current
        logger.error("rank %d: no progress for %.0f s in %s", self._rank, idle, self._phases)
        faulthandler.dump_traceback(all_threads=True)
        try:
            self._store.set(f"phase of {self._rank}", phase)
            if self._rank == 0:
                logger.error("hanging job ended: %s", self._gather())
                self._store.set("reported", "")
            else:
                self._store.wait(["reported"], timedelta(seconds=GATHER_SECONDS + 5))
        except RuntimeError:  # the store's host is gone, or has not answered in time
            pass
        _end(EXIT_STATUS)

    def _gather(self) -> str:
        deadline = time.monotonic() + GATHER_SECONDS
        waiting = set(range(self._world_size))
        stood: dict[str, list[int]] = {}
        while waiting and time.monotonic() < deadline:
            for rank in sorted(waiting):
                key = f"phase of {rank}"
                if self._store.check([key]):
                    stood.setdefault(self._store.get(key).decode(), []).append(rank)
                    waiting.remove(rank)
            time.sleep(0.05)
        if waiting:
            stood["no answer"] = sorted(waiting)
        return "; ".join(f"{name}: {as_ranges(ranks)}" for name, ranks in stood.items())

    def _lost_rank(self) -> int | None:
        try:
            if self._neighbour is not None and not is_running(self._neighbour[1]):
                self._store.set("lost", str(self._neighbour[0]))
            return int(self._store.get("lost")) if self._store.check(["lost"]) else None
        except RuntimeError:
            return 0  # which holds the store

    def _report_loss(self, lost: int) -> None:
        # gloo's own error, which ends the job as well, may be on its way: it has the precedence.
        if self._leave.wait(2 * self._tick):
            return
        logger.error("rank %d: rank %d has died, in %s here", self._rank, lost, self._phases)
        _end(EXIT_STATUS_LOST)


def neighbour(processes: Sequence[tuple[str, int]], rank: int) -> tuple[int, int] | None:
    """The next rank on the same host, in a ring, as (rank, process id); None without one.

    Parameters
    ----------
    processes
        Host and process id of each rank.
    """
    host = processes[rank][0]
    local = [number for number, (name, _) in enumerate(processes) if name == host]
    if len(local) == 1:
        return None
    following = local[(local.index(rank) + 1) % len(local)]
    return following, processes[following][1]


def is_running(pid: int) -> bool:
    """Whether a process of this host is there and no zombie."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:
        return False
    except OSError:  # not ours to signal, or no /proc: it is there
        return True
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def as_ranges(ranks: Sequence[int]) -> str:
    """Sorted ranks as text: `rank 1`, or `ranks 0, 2-7`."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {text}"


def _end(status: int) -> None:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
