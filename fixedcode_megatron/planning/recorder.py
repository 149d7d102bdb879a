"""Sees every operation of a rehearsal: answers collectives, counts them, follows memory."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fixedcode_megatron.planning.traffic import Traffic

_OPERATIONS = {
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "send": "send",
    "recv": "receive",
    "recv_any_source": "receive",
}
_UNCOUNTED = ("barrier", "broadcast")


class Recorder(TorchDispatchMode):
    """Answers collectives without peers, counts them, and follows the memory in use."""

    def __init__(self) -> None:
        super().__init__()
        self.traffic = Traffic()
        self.watching = True
        self.peak = self._live = 0
        self._storages: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = func.name().partition("::")
        if namespace == "c10d":
            return self._communicate(func, name.partition(".")[0].rstrip("_"), args)
        if name == "_local_scalar_dense":
            # The program reads a number: there is none. A norm may be 1; flags are not set.
            return 1.0 if args[0].is_floating_point() else 0
        result = func(*args, **(kwargs or {}))
        if self.watching:
            # In-place operations and views return what was there before.
            old = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
            for tensor in _tensors(result):
                if tensor.untyped_storage()._cdata not in old:
                    self._watch(tensor)
        return result

    def _communicate(self, func: Any, name: str, args: Any) -> Any:
        from torch._C._distributed_c10d import FakeWork

        if name not in _UNCOUNTED:
            group = next(a for a in args if isinstance(a, torch.ScriptObject))
            size = dist.ProcessGroup.unbox(group).size()
            operation = _OPERATIONS[name]
            if operation in ("send", "receive"):
                size = 2
            self.traffic.add(operation, size, max(_sizes(args)))
        work = FakeWork().boxed()
        return work if len(func._schema.returns) == 1 else (args[0], work)

    def _watch(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        size = storage.nbytes()

        def freed(_reference: Any) -> None:
            self._storages.pop(key, None)
            self._live -= size

        self._storages[key] = weakref.ref(storage, freed)
        self._live += size
        self.peak = max(self.peak, self._live)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _sizes(args: Any) -> list[int]:
    """Bytes of each argument: a tensor, or a list of tensors taken together."""
    return [sum(t.numel() * t.element_size() for t in _tensors(value)) for value in args]
