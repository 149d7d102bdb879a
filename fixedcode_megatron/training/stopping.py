"""Leaving a run early and cleanly: signals, time limits, intervals; all ranks agree on when."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig
    from fixedcode_megatron.runtime import Runtime

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SECOND_INTERRUPT_SECONDS = 1.0


class StopRequests:
    """Collects reasons to stop from every rank.

    `vote` starts a reduction and returns the outcome of the one before, so that no iteration waits
    for it: the ranks stop together, one iteration after the first of them asked.

    SIGTERM may come twice (Slurm signals every process of a job step, and torchrun passes its own
    on), which must not cost the checkpoint. A second Ctrl-C, `SECOND_INTERRUPT_SECONDS` or more
    after the first, ends the process at once.

    Attributes
    ----------
    signal_number
        The signal that this run stops for (of any rank), or 0.
    requested
        Whether a vote has ended with the decision to stop, which then stands.
    """

    def __init__(self, cfg: RunConfig, runtime: Runtime) -> None:
        self._cfg = cfg.training
        self._device = runtime.device
        self._started = runtime.started
        self._pending: tuple[Any, torch.Tensor] | None = None
        self._received = 0
        self._interrupted: float | None = None
        self._previous: dict[int, Any] = {}
        self.signal_number = 0
        self.requested = False

    def __enter__(self) -> StopRequests:
        if self._cfg.exit_signal_handler:
            self._previous = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        return self

    def __exit__(self, *_exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT and self._interrupted is not None:
            if now - self._interrupted >= SECOND_INTERRUPT_SECONDS:
                raise KeyboardInterrupt
            return
        if number == signal.SIGINT:
            self._interrupted = now
        self._received = number

    def vote(self) -> bool:
        """Whether to stop now; every rank must call it in each step of training or evaluation."""
        if self.requested:
            return True
        limit = self._cfg.exit_duration_in_mins
        overdue = limit is not None and time.monotonic() - self._started > 60 * limit
        wish = torch.tensor([self._received, int(overdue)], device=self._device)
        outcome = self._take_outcome()
        self._pending = (dist.all_reduce(wish, op=dist.ReduceOp.MAX, async_op=True), wish)
        return outcome

    def _take_outcome(self) -> bool:
        if self._pending is None:
            return False
        work, wishes = self._pending
        work.wait()
        self.signal_number, overdue = map(int, wishes.tolist())
        self.requested = bool(self.signal_number or overdue)
        return self.requested

    def finish(self) -> None:
        """Wait for the reduction that is still under way."""
        if self._pending is not None:
            self._pending[0].wait()
            self._pending = None
