"""Whether tensors hold a NaN or an infinity; a state that does is never saved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from fixedcode_megatron.errors import TrainingError

if TYPE_CHECKING:
    from fixedcode_megatron.training.trainer import Trainer


def not_finite(named: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Names of the first three tensors that hold a NaN or an infinity (one wait for the device)."""
    plain = [
        (name, tensor.detach())
        for name, tensor in named
        if tensor.is_floating_point() and type(tensor.detach()) is Tensor and tensor.numel()
    ]
    if not plain:
        return []
    largest = torch._foreach_norm([tensor for _, tensor in plain], ord=math.inf)
    finite = torch.stack([value.float() for value in largest]).isfinite().tolist()
    return [name for (name, _), ok in zip(plain, finite, strict=True) if not ok][:3]


def refuse_unsound_state(trainer: Trainer) -> None:
    """Raise `TrainingError`, on all ranks, if a weight or a moment of any rank is not finite.

    Does nothing with `--no-check-for-nan-in-loss-and-grad`.
    """
    if not trainer.cfg.training.check_for_nan_in_loss_and_grad:
        return
    found = not_finite(_state(trainer))
    bad = torch.tensor([bool(found)], device=trainer.runtime.device, dtype=torch.int32)
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if not bad.item():
        return
    reports: list[Any] = [None] * trainer.runtime.world_size
    dist.all_gather_object(reports, found)
    told = [f"rank {rank}: {', '.join(names)}" for rank, names in enumerate(reports) if names]
    raise TrainingError(
        f"iteration {trainer.state.iteration} is not saved, for its state holds values that are "
        f"not finite ({'; '.join(told[:8])}); start again from the last checkpoint"
    )


def _state(trainer: Trainer) -> Iterator[tuple[str, Tensor]]:
    """Weights, main weights and moments with names to call them by."""
    for model in trainer.models:
        yield from ((name, parameter.data) for name, parameter in model.named_parameters())
    for optimizer in trainer.optimizer.chained_optimizers:
        for index, parameter in enumerate(optimizer.get_parameters()):
            yield f"optimizer parameter {index}", parameter.data
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor) and value.dim():
                    yield f"{key} of optimizer parameter {index}", value
