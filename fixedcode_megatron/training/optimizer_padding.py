"""A cure for megatron-core: the distributed optimizer's state where buckets end in padding.

To save it in model space, megatron-core lines the buckets up without the padding between them, then
looks for each parameter where it would be with it. Wherever a bucket but the last has padding (its
size is no multiple of 128 and of the data-parallel size), every parameter behind it is saved with
a neighbour's moments and main weights, silently. Seen in 0.16.1 and 0.19.2.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

_NAME = "sharded_param_state_fully_reshardable"


def install() -> None:
    """Have megatron-core look where the state is; safe to call twice."""
    original = getattr(DistributedOptimizer, _NAME)
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def state(self: Any, *args: Any, **kwargs: Any) -> Any:
        gather = self.get_parameter_state_dp_zero
        self.get_parameter_state_dp_zero = lambda *a, **k: _spread(self.buffers, gather(*a, **k))
        try:
            return original(self, *args, **kwargs)
        finally:
            del self.get_parameter_state_dp_zero

    setattr(DistributedOptimizer, _NAME, state)


def _spread(buffers: list[Any], state: dict[Any, Any]) -> dict[Any, Any]:
    """Put each bucket's part of the gathered state where the bucket lies in its buffer."""
    for index, buffer in enumerate(buffers):
        for values in state[index].values():
            for name, value in values.items():
                if isinstance(value, torch.Tensor) and value.numel() != buffer.numel:
                    values[name] = _spread_tensor(value, buffer)
    return state


def _spread_tensor(dense: torch.Tensor, buffer: Any) -> torch.Tensor:
    padded, start = dense.new_zeros(buffer.numel), 0
    for bucket in buffer.buckets:
        size = bucket.numel_unpadded
        padded[bucket.offset : bucket.offset + size] = dense[start : start + size]
        start += size
    return padded
