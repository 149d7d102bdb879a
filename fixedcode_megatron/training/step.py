"""One training step: micro-batches through megatron-core's schedule, reduction, update."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.num_microbatches_calculator import get_num_microbatches
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from fixedcode_megatron.training import phases
from fixedcode_megatron.training.trainer import Trainer

Batch = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step left behind; tensors stay on the device, so that nothing waits for them.

    Attributes
    ----------
    loss
        [2] FP64 pair (sum of token losses, number of tokens) of this rank's micro-batches;
        None on ranks that do not hold the loss, and where the update was left out.
    updated
        Whether the optimizer applied the update.
    samples
        Size of the global batch.
    grad_norm
        Global gradient norm before clipping, or None where it was not computed.
    num_zeros
        Gradients that are zero, with `--log-num-zeros-in-grad`.
    squares
        [3] FP64: squared gradient norms of input, layers and head, in iterations that are logged.
    """

    loss: Tensor | None
    updated: bool
    samples: int
    grad_norm: float | None
    num_zeros: float | None
    squares: Tensor | None


def loss_function(
    loss_mask: Tensor, num_tokens: Tensor | None, output: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Sum of the token losses under the mask, as megatron-core's schedules want it.

    Parameters
    ----------
    loss_mask
        [b, s]: which tokens count.
    output
        [b, s]: the loss of each token; or a scalar, their sum under the mask.
    num_tokens
        Under context parallelism, where this rank holds a part of the sequences: the tokens that
        count in the whole of them. The gradients are then averaged over these ranks as over the
        data-parallel ones, so the loss is multiplied by their number.

    Returns
    -------
    loss, num_tokens, report
        The schedule divides `loss` in place, so the report holds a copy.
    """
    loss = torch.sum(output.float() * loss_mask) if output.dim() else output
    own_tokens = loss_mask.sum(dtype=torch.float32)
    report = {"lm loss": torch.stack([loss.detach(), own_tokens.to(loss.dtype)])}
    if num_tokens is None:
        return loss, own_tokens.to(torch.int), report
    return loss * parallel_state.get_context_parallel_world_size(), num_tokens, report


def forward_step(
    data_iterator: Iterator[Batch],
    model: torch.nn.Module,
    *,
    device: torch.device,
    phase: phases.Phases,
) -> tuple[Tensor, Any]:
    """Run one micro-batch through a model chunk; returns its output and the loss function."""
    with phase(phases.DATA):
        found = next(data_iterator)
        batch = {name: value.to(device, non_blocking=True) for name, value in found.items()}
    output = model(
        batch["tokens"],
        batch["position_ids"],
        batch.get("attention_mask"),
        labels=batch["labels"],
        loss_mask=batch["loss_mask"],
    )
    return output, partial(loss_function, batch["loss_mask"], batch.get("num_tokens"))


def run_microbatches(
    trainer: Trainer,
    data_iterators: list[Iterator[Batch]],
    *,
    num_microbatches: int,
    forward_only: bool = False,
) -> Tensor | None:
    """Forward (and backward) over `num_microbatches`; returns this rank's [2] loss pair, FP64."""
    single = len(trainer.models) == 1
    reports = get_forward_backward_func()(
        forward_step_func=partial(
            forward_step, device=trainer.runtime.device, phase=trainer.phases
        ),
        data_iterator=data_iterators[0] if single else data_iterators,
        model=trainer.models,
        num_microbatches=num_microbatches,
        seq_length=trainer.cfg.model.seq_length,
        micro_batch_size=trainer.cfg.training.micro_batch_size,
        decoder_seq_length=trainer.cfg.model.seq_length,
        forward_only=forward_only,
    )
    if not parallel_state.is_pipeline_last_stage(ignore_virtual=True):
        return None
    return torch.stack([report["lm loss"] for report in reports]).double().sum(dim=0)


def train_step(trainer: Trainer, data_iterators: list[Iterator[Batch]]) -> StepResult:
    """Do one iteration: gradients of a global batch, reduction, clipping, update, schedule."""
    for model in trainer.models:
        model.zero_grad_buffer()
    trainer.optimizer.zero_grad()
    num_microbatches = get_num_microbatches()
    check: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if not trainer.gradients_verified:
        check = every_parameter_must_receive_a_gradient(trainer)
    with check, trainer.phases(phases.FORWARD_BACKWARD):
        loss = run_microbatches(trainer, data_iterators, num_microbatches=num_microbatches)
    trainer.gradients_verified = True
    with trainer.phases(phases.OPTIMIZER):
        updated, grad_norm, num_zeros = trainer.guard.step(loss)
    if updated:
        trainer.scheduler.step(increment=trainer.global_batch_size)
    trainer.state.optimizer_steps += updated
    tokens = trainer.global_batch_size * trainer.cfg.model.seq_length
    trainer.state.floating_point_operations += tokens * trainer.shape.flops_per_token
    samples = _count_iteration(trainer, updated=updated)
    return StepResult(
        loss=loss if updated else None,
        updated=updated,
        samples=samples,
        grad_norm=grad_norm,
        num_zeros=num_zeros,
        squares=trainer.guard.squares,
    )


def skip_step(trainer: Trainer, data_iterators: list[Iterator[Batch]]) -> StepResult:
    """Read the data of one iteration and do nothing with it (`--iterations-to-skip`)."""
    with trainer.phases(phases.DATA):
        for iterator in data_iterators:
            for _ in range(get_num_microbatches()):
                next(iterator)
    samples = _count_iteration(trainer, updated=False)
    return StepResult(
        loss=None, updated=False, samples=samples, grad_norm=None, num_zeros=None, squares=None
    )


def _count_iteration(trainer: Trainer, *, updated: bool) -> int:
    """Move the run's progress on by one iteration; returns the samples that it has read."""
    state, samples = trainer.state, trainer.global_batch_size
    state.iteration += 1
    state.consumed_samples += samples
    state.consumed_tokens += samples * trainer.cfg.model.seq_length
    state.skipped_iterations += not updated
    trainer.set_batch_size()
    return samples


@contextlib.contextmanager
def every_parameter_must_receive_a_gradient(trainer: Trainer) -> Iterator[None]:
    """Raise unless the backward passes inside the context reach every parameter of this rank.

    A parameter that gets no gradient trains silently wrong, and there are several ways there:
    activation recompute over inputs without gradients is one. Checked once per process.
    """
    parameters = [
        (name, parameter)
        for model in trainer.models
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    reached: set[int] = set()
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda p: reached.add(id(p)))
        for _, parameter in parameters
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    missing = [name for name, parameter in parameters if id(parameter) not in reached]
    if missing:
        raise RuntimeError(
            f"rank {trainer.runtime.rank}: the first backward pass gave no gradient to "
            f"{len(missing)} parameters: {', '.join(missing[:8])}"
        )
