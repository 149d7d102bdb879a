"""Bytes that a trainer holds: what the estimates of `states` are about, counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from fixedcode_megatron.training.trainer import Trainer


def parameter_bytes(trainer: Trainer) -> int:
    """With the distributed optimizer parameters live in one padded buffer, else on their own."""
    total = 0
    for buffer in _buffers(trainer):
        tensors = buffer.params if buffer.param_data is None else [buffer.param_data]
        total += sum(t.numel() * t.element_size() for t in tensors)
    return total


def gradient_bytes(trainer: Trainer) -> int:
    """The buffers that gradients add up in."""
    return sum(b.grad_data.numel() * b.grad_data.element_size() for b in _buffers(trainer))


def optimizer_bytes(trainer: Trainer) -> int:
    """Main parameters that are no view of the model's, and Adam's moments (after a first step)."""
    total, owned = 0, {id(p) for model in trainer.models for p in model.parameters()}
    shared = {
        b.param_data.untyped_storage()._cdata for b in _buffers(trainer) if b.param_data is not None
    }
    for part in getattr(trainer.optimizer, "chained_optimizers", [trainer.optimizer]):
        inner = part.optimizer
        for group in inner.param_groups:
            for p in group["params"]:
                if id(p) not in owned and p.untyped_storage()._cdata not in shared:
                    total += p.numel() * p.element_size()
                total += sum(
                    value.numel() * value.element_size()
                    for value in inner.state[p].values()
                    if isinstance(value, Tensor)
                )
    return total


def _buffers(trainer: Trainer) -> list[Any]:
    return [buffer for model in trainer.models for buffer in model.buffers]
