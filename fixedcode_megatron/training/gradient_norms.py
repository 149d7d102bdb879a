"""Norms of the gradients by part of the model: input interface, layers, head."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared
from torch import Tensor

if TYPE_CHECKING:
    from fixedcode_megatron.training.trainer import Trainer

PARTS = ("input", "layers", "head")
_GROUPS = tuple(inspect.signature(param_is_not_tensor_parallel_duplicate).parameters)[1:]
_MODULES = {"embedding": "input", "decoder": "layers", "output_layer": "head"}


def part_of(parameter_name: str) -> str:
    """The part that a parameter of the GPT model belongs to (a tied table is the input's)."""
    words = (word for word in parameter_name.split(".") if word != "module")
    return _MODULES.get(next(words), "layers")


class GradientNorms:
    """Measures each part's gradient norm before clipping, with no wait for the device.

    Every element of the gradients counts once, on whichever rank holds it: megatron-core's own rule
    for duplicates, and under the distributed optimizer the piece that a rank updates. The squares
    of the three norms therefore add up to that of `grad norm`.

    Parameters
    ----------
    trainer
        Models in DDP and megatron-core's optimizer.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._optimizers = trainer.optimizer.chained_optimizers
        self._device = trainer.runtime.device
        self._parameters = [
            (PARTS.index(part_of(name)), parameter)
            for model in trainer.models
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and param_is_not_shared(parameter)
        ]

    @torch.no_grad()
    def measure(self) -> Tensor:
        """[3] FP64: sum of squares of each part's gradient, over all ranks that share the model.

        To be called when the optimizer has taken over the gradients and not yet clipped them, on
        every rank.
        """
        total = torch.zeros(3, dtype=torch.float64, device=self._device)
        for optimizer in self._optimizers:
            gradients: list[list[Tensor]] = [[], [], []]
            held = {id(parameter) for parameter in optimizer.get_parameters()}
            for part, parameter in self._parameters:
                gradient = _owned_gradient(optimizer, held, parameter)
                if gradient is not None:
                    gradients[part].append(gradient)
            squares = torch.stack([self._sum_of_squares(tensors) for tensors in gradients])
            dist.all_reduce(squares, group=optimizer.get_grad_stats_parallel_group())
            total += squares
        return total

    def _sum_of_squares(self, tensors: list[Tensor]) -> Tensor:
        zero = torch.zeros((), dtype=torch.float64, device=self._device)
        if not tensors:
            return zero
        norms = torch.stack(torch._foreach_norm([tensor.float() for tensor in tensors]))
        return zero + norms.double().square().sum()


def _owned_gradient(optimizer: Any, held: set[int], parameter: Any) -> Tensor | None:
    """The part of a parameter's main gradient that this rank counts for `optimizer`, if any."""
    groups = {name: getattr(optimizer, name, None) for name in _GROUPS}
    if not param_is_not_tensor_parallel_duplicate(parameter, **groups):
        return None
    main = getattr(parameter, "main_param", None)
    places = getattr(optimizer, "model_param_gbuf_map", None)
    if places is None:  # the whole parameter is updated here
        updated = parameter if main is None else main
        return updated.grad if id(updated) in held else None
    if parameter not in places:
        return None
    buffer, dtype, bucket = places[parameter]
    here = optimizer.gbuf_ranges[buffer][dtype][bucket]["param_map"].get(parameter)
    if here is None:  # another data-parallel rank's
        return None
    if main is not None:
        return main.grad
    return parameter.main_grad.view(-1)[here["param"].start : here["param"].end]
