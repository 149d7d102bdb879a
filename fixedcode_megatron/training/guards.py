"""Keeps gradients that are not numbers, and spikes, out of the weights.

The optimizer brings the global gradient norm to the host in every step, for clipping. The verdict
is made from that value between norm and update, so that it costs no wait of its own and all ranks
come to the same one: the norm is non-finite wherever any rank's gradient is. With
`--check-for-spiky-loss` one more reduction of two numbers runs beside that of the norm.
"""

from __future__ import annotations

import logging
import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from fixedcode_megatron.errors import TrainingError
from fixedcode_megatron.training.finite import not_finite
from fixedcode_megatron.training.gradient_norms import GradientNorms

if TYPE_CHECKING:
    from fixedcode_megatron.training.trainer import Trainer

logger = logging.getLogger(__name__)

WINDOW = 128
"""Accepted iterations that a spike is measured against."""
FEWEST = 16
"""Below this many nothing is a spike."""
LEAST_DEVIATION = 0.01
"""The standard deviation is taken as at least this share of the mean."""


@dataclass
class Findings:
    """What one rank sees of a bad iteration; names of parameters, at most three each."""

    loss: bool = False
    weights: list[str] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        found = ["a loss that is not finite"] if self.loss else []
        found += [f"the weights {', '.join(self.weights)}"] if self.weights else []
        if not found and self.gradients:
            found = [f"the gradients of {', '.join(self.gradients)}"]
        return " and ".join(found)


class UpdateGuard:
    """Applies or leaves out the optimizer's update, and ends the run after too many left out.

    Parameters
    ----------
    trainer
        Its optimizer's `get_grad_norm` and `step_with_ready_grads` are wrapped.

    Attributes
    ----------
    measure_parts
        Whether the next steps also measure the norm of each part of the model.
    squares
        [3] FP64: squared norms of input, layers and head in the last step, where measured.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        training = trainer.cfg.training
        self._finite = training.check_for_nan_in_loss_and_grad
        self._spiky_loss = training.check_for_spiky_loss
        self._large_grads = training.check_for_large_grads
        self._norms = GradientNorms(trainer)
        optimizer = trainer.optimizer
        self._norm_of, self._apply = optimizer.get_grad_norm, optimizer.step_with_ready_grads
        optimizer.get_grad_norm = self._measured_norm
        optimizer.step_with_ready_grads = self._apply_if_sound
        self._norm: float | None = None
        self._loss: float | None = None
        self._fault: str | None = None
        self._reduction: tuple[Any, Tensor] | None = None
        self.measure_parts = False
        self.squares: Tensor | None = None

    def step(self, loss: Tensor | None) -> tuple[bool, float | None, float | None]:
        """Let the optimizer update, if nothing speaks against it.

        Parameters
        ----------
        loss
            [2] pair (sum of token losses, number of tokens) of this rank, or None without a loss.

        Returns
        -------
        updated, grad_norm, num_zeros

        Raises
        ------
        TrainingError
            If `--max-consecutive-skips` iterations in a row were bad; on all ranks.
        """
        self._norm = self._loss = self._fault = self.squares = None
        self._reduction = self._start_loss_reduction(loss) if self._spiky_loss else None
        updated, norm, num_zeros = self._trainer.optimizer.step()
        if self._fault is not None:
            self._count_bad(self._fault, loss)
        elif updated:
            self._remember()
        return bool(updated), _as_float(norm), _as_float(num_zeros)

    def _start_loss_reduction(self, loss: Tensor | None) -> tuple[Any, Tensor]:
        device = self._trainer.runtime.device
        pair = torch.zeros(2, dtype=torch.float64, device=device)
        if loss is not None:
            pair.copy_(loss)
        return dist.all_reduce(pair, async_op=True), pair

    def _measured_norm(self) -> float:
        if self.measure_parts:
            self.squares = self._norms.measure()
        self._norm = float(self._norm_of())
        return self._norm

    def _apply_if_sound(self) -> bool:
        self._fault = self._find_fault()
        return self._fault is None and self._apply()

    def _find_fault(self) -> str | None:
        norm, state = self._norm, self._trainer.state
        assert norm is not None
        if self._reduction is not None:
            work, pair = self._reduction
            work.wait()
            total, tokens = pair.tolist()
            self._loss = total / tokens if tokens else math.nan
        if self._finite and not math.isfinite(norm):
            return f"the gradient norm is {norm}"
        sigmas = self._trainer.cfg.training.spike_sigmas
        if self._loss is not None and is_spike(self._loss, state.recent_losses, sigmas):
            return f"the loss of {self._loss:.4g} is a spike"
        if self._large_grads and is_spike(norm, state.recent_grad_norms, sigmas):
            return f"the gradient norm of {norm:.4g} is a spike"
        return None

    def _remember(self) -> None:
        state = self._trainer.state
        state.skips_in_a_row = 0
        for recent, value, wanted in (
            (state.recent_losses, self._loss, self._spiky_loss),
            (state.recent_grad_norms, self._norm, self._large_grads),
        ):
            if wanted and value is not None:
                recent.append(value)
                del recent[:-WINDOW]

    def _count_bad(self, fault: str, loss: Tensor | None) -> None:
        trainer, state = self._trainer, self._trainer.state
        state.skips_in_a_row += 1
        state.nan_iterations += not math.isfinite(self._norm or 0.0)
        number, first = state.iteration + 1, state.consumed_samples
        last = first + trainer.global_batch_size - 1
        text = f"iteration {number}: {fault}; {self._where(loss)}samples {first} to {last}"
        limit = trainer.cfg.training.max_consecutive_skips
        if state.skips_in_a_row >= limit:
            raise TrainingError(
                f"{text}: the update was left out, {state.skips_in_a_row} times in a row "
                "(--max-consecutive-skips), and the run ends without saving. Start again from the "
                "last checkpoint; if it happens at the same samples, leave them out with "
                f"--iterations-to-skip {number}, else look for a faulty device"
            )
        if trainer.runtime.rank == 0:
            logger.warning("%s: the update is left out", text)

    def _where(self, loss: Tensor | None) -> str:
        """Which ranks see something that is not finite: `rank 3: the loss; ` or nothing.

        For bad iterations only: waits for the device and gathers from all ranks.
        """
        if math.isfinite(self._norm or 0.0):
            return ""
        named = [x for m in self._trainer.models for x in m.named_parameters()]
        findings = Findings(
            loss=loss is not None and not bool(loss[0].isfinite()),
            weights=not_finite((name, p.data) for name, p in named),
            gradients=not_finite((name, p.main_grad) for name, p in named),
        )
        told: list[Any] = [None] * self._trainer.runtime.world_size
        dist.all_gather_object(told, findings)
        sources = [(rank, x) for rank, x in enumerate(told) if x.loss or x.weights]
        sources = sources or [(rank, x) for rank, x in enumerate(told) if x.gradients]
        shown = "; ".join(f"rank {rank} has {x}" for rank, x in sources[:8])
        more = len(sources) - 8
        return (shown + (f"; {more} more ranks" if more > 0 else "") + "; ") if shown else ""


def is_spike(value: float, recent: list[float], sigmas: float) -> bool:
    """Whether a value is more than `sigmas` standard deviations above the mean of recent ones."""
    if len(recent) < FEWEST or not math.isfinite(value):
        return len(recent) >= FEWEST
    mean = statistics.fmean(recent)
    deviation = max(statistics.pstdev(recent, mean), LEAST_DEVIATION * abs(mean))
    return value > mean + sigmas * deviation


def _as_float(value: Any) -> float | None:
    return None if value is None else float(value)
