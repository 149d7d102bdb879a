"""Context parallelism of the torch-native attention: each rank has two slices of every sequence.

A sequence is cut into 2 * n slices for n context-parallel ranks; rank r holds slices r and
2n - 1 - r, so that under the causal mask all ranks have the same work. This is Megatron's cut: data
feed, rotary positions and Transformer Engine agree on it.

Keys and values are gathered from all ranks; a rank's queries then meet those of the sequence up to
their own position. The gradients of keys and values are summed over the ranks, each of which keeps
its slices' part.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def slices_of_rank(x: Tensor, dim: int, *, rank: int, size: int) -> Tensor:
    """The two slices of a rank, one after the other; `x` has the whole sequence in `dim`."""
    slices = x.chunk(2 * size, dim=dim)
    return torch.cat([slices[rank], slices[-1 - rank]], dim=dim)


def spans_of_rank(sequence_length: int, *, rank: int, size: int) -> tuple[int, int]:
    """How many positions the last query of each of a rank's two slices sees, itself included."""
    part = sequence_length // (2 * size)
    return (rank + 1) * part, (2 * size - rank) * part


def gather_sequence(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The whole sequence in order, [s, ...], of each rank's two slices [s / n, ...].

    In backward the ranks' gradients are added up and each rank gets its slices' part.
    """
    return _GatherSequence.apply(x, group)


class _GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        n = group.size()
        found = x.new_empty((n * x.shape[0], *x.shape[1:]))
        dist.all_gather_into_tensor(found, x.contiguous(), group=group)
        near, far = found.view(n, 2, -1, *x.shape[1:]).unbind(1)
        return torch.cat([near, far.flip(0)]).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        n, grad = ctx.group.size(), grad_outputs[0]
        near, far = grad.view(2, n, -1, *grad.shape[1:]).unbind(0)
        by_rank = torch.stack([near, far.flip(0)], dim=1).flatten(0, 2)
        mine = grad.new_empty((grad.shape[0] // n, *grad.shape[1:]))
        dist.reduce_scatter_tensor(mine, by_rank, group=ctx.group)
        return mine, None
