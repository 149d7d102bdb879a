"""Memory by category: parameters, gradients, optimizer state, and the peak of the rest."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from fixedcode_megatron.training.trainer import Trainer

FIELDS = ("parameters", "gradients", "optimizer", "activations peak", "peak")


class MemoryUse:
    """Bytes held, of the rank that holds most in each category.

    Parameters, gradients and optimizer state are the sizes of the storages behind the tensors. Each
    storage counts once: DDP's buffers hold the gradients and, with the distributed optimizer, the
    parameters, padding included; FP32 weights that the optimizer updates in place are parameters.

    On a GPU the peak is that of PyTorch's allocator since the last report and `activations peak`
    what is left of it after these three. On a CPU the peak is the largest resident set so far of
    the process, code and libraries included, and the activations' part of it is not known.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._on_gpu = trainer.runtime.device.type == "cuda"

    def report(self) -> dict[str, Any]:
        """Bytes by category and what the peak is that of; every rank must call it."""
        trainer = self._trainer
        held = held_bytes(trainer)
        peak, activations = self._peak(sum(held))
        values = torch.tensor([*held, activations, peak], device=trainer.runtime.device)
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        found: dict[str, Any] = {
            f"memory {name} (bytes)": value
            for name, value in zip(FIELDS, values.tolist(), strict=True)
        }
        if not self._on_gpu:
            found["memory activations peak (bytes)"] = None
        return found | {"memory peak of": "allocator" if self._on_gpu else "resident set"}

    def _peak(self, held: int) -> tuple[int, int]:
        if not self._on_gpu:
            return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
        device = self._trainer.runtime.device
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return peak, max(0, peak - held)


def moment_bytes(optimizer: str) -> int:
    """Bytes of an optimizer's FP32 moments for an element of a parameter that Adam or SGD updates.

    What Muon updates itself has one moment, the rest of its model Adam's two.
    """
    return 4 if optimizer == "sgd" else 8


def held_bytes(trainer: Trainer) -> list[int]:
    """Bytes of parameters, gradients and optimizer state on this rank."""
    seen: set[int] = set()
    parameters = [p for model in trainer.models for p in model.parameters()]
    buffers = [buffer for model in trainer.models for buffer in _buffers(model)]
    main = [p for o in trainer.optimizer.chained_optimizers for p in o.get_parameters()]
    weights = [*parameters, *(b.param_data for b in buffers)]
    gradients = [*(b.grad_data for b in buffers), *(p.grad for p in [*parameters, *main])]
    state = [*main, *_states(trainer)]
    return [_new_bytes(tensors, seen) for tensors in (weights, gradients, state)]


def _buffers(model: Any) -> list[Any]:
    return [*model.buffers, *model.expert_parallel_buffers]


def _states(trainer: Trainer) -> Iterator[Tensor]:
    for optimizer in trainer.optimizer.chained_optimizers:
        if not optimizer.is_stub_optimizer:
            for state in optimizer.optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, Tensor))


def _new_bytes(tensors: Iterable[Tensor | None], seen: set[int]) -> int:
    """Size of the storages that were not seen before; adds them to `seen`."""
    total = 0
    for tensor in tensors:
        if tensor is None:
            continue
        try:
            storage = tensor.untyped_storage()
            if storage.device.type != "meta":  # a rehearsal's have no data, and say 0
                storage.data_ptr()
        except (NotImplementedError, RuntimeError):  # an FP8 weight of Transformer Engine's
            total += tensor.numel()
            continue
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            total += storage.nbytes()
    return total
