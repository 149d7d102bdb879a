"""Output layer and cross entropy in one, so that the logits never exist whole.

The logits of a micro-batch are its largest tensor: 2048 tokens times a vocabulary of 131,072 are
1 GiB in FP32, and the usual way holds them, their softmax and their gradient at once. Here a chunk
of tokens at a time goes all the way from its hidden states to the gradients of hidden states and
weight; only these are kept. Nothing is recomputed: a chunk costs the usual three matrix products.

With p the softmax of a token's logits W x, y its label and m its weight in the sum of losses,

    d/dx = m W^T (p - onehot(y))        d/dW = sum over tokens of m (p - onehot(y)) x^T

Under tensor parallelism a rank normalises over its own rows of W first; one number a token, twice,
tells it the softmax over all of them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from torch import Tensor

from fixedcode_megatron.cpu_operations import multiply

_CHUNK_ELEMENTS = 2**26
"""Logits held at a time, on each tensor-parallel rank: 256 MiB in FP32."""


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    loss_mask: Tensor,
    *,
    group: dist.ProcessGroup,
    sequence_parallel: bool,
) -> Tensor:
    """Sum of the tokens' cross entropies under the mask, differentiable once.

    Parameters
    ----------
    hidden
        [s, b, h], or [s / tp, b, h] under sequence parallelism; any floating dtype.
    weight
        [V / tp, h]: this rank's rows of the output layer.
    labels, loss_mask
        [b, s]: ids below V, and what each token's loss counts.
    group
        Tensor-parallel group.
    sequence_parallel
        Whether `hidden` is this rank's part of the sequence.

    Returns
    -------
    Tensor
        FP32 scalar, equal on all ranks of the group.
    """
    if sequence_parallel:
        hidden = gather_from_sequence_parallel_region(hidden, group=group)
    elif group.size() > 1:
        hidden = copy_to_tensor_model_parallel_region(hidden, group=group)
    tokens = hidden.flatten(0, 1)
    loss: Tensor = _LinearCrossEntropy.apply(
        tokens,
        weight,
        labels.t().flatten(),
        loss_mask.t().flatten().float(),
        group,
        torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad),
    )
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes the gradients in its forward pass; they are scaled in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        labels: Tensor,
        mask: Tensor,
        group: dist.ProcessGroup,
        wants_gradient: bool,
    ) -> Tensor:
        rows = weight.shape[0]
        own = labels - group.rank() * rows  # position among this rank's rows
        here = (own >= 0) & (own < rows)
        own = own.clamp(0, rows - 1)
        grad_x = torch.empty_like(x) if wants_gradient else None
        grad_weight = None  # transposed, [h, V / tp], in FP32
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        for part in chunks(len(x), rows):
            logits = multiply(x[part], weight).float()
            label, share = own[part, None], here[part, None]
            target = torch.where(share, logits.gather(1, label), 0)[:, 0]
            lse, probabilities = _softmax_(logits), logits
            if group.size() > 1:
                factor, lse, target = _over_all_ranks(lse, target, group)
                probabilities.mul_(factor[:, None])
            total += torch.dot(mask[part], lse - target)
            if grad_x is None:
                continue
            difference = probabilities.scatter_add_(1, label, -share.float()).to(x.dtype)
            scale = mask[part, None]
            grad_x[part] = multiply(difference, weight.t()).mul_(scale)
            product = multiply((x[part] * scale).to(x.dtype).t(), difference.t())
            grad_weight = product.float() if grad_weight is None else grad_weight.add_(product)
        if grad_x is not None:
            ctx.save_for_backward(grad_x, grad_weight)
            ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_weight = ctx.saved_tensors
        grad_weight = grad_weight.mul_(grad_loss).to(ctx.weight_dtype).t()
        return grad_x.mul_(grad_loss), grad_weight, None, None, None, None


def chunks(tokens: int, rows: int) -> list[slice]:
    """Equal parts of the tokens whose logits are at most `_CHUNK_ELEMENTS` each."""
    count = max(1, -(-tokens * rows // _CHUNK_ELEMENTS))
    size = max(1, -(-tokens // count))
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]


def _softmax_(logits: Tensor) -> Tensor:
    """Overwrite FP32 `logits` [n, V] with their softmax; returns their log-sum-exp [n].

    The largest probability is at least 1 / V, so that its logarithm is exact enough to tell the
    sum: one pass less over memory than torch.logsumexp. A few rows at a time stay in a CPU's cache
    from one pass to the next.
    """
    sums = []
    for rows in logits.split(32) if logits.device.type == "cpu" else (logits,):
        largest = rows.amax(-1)
        torch.softmax(rows, -1, out=rows)
        sums.append(largest - rows.amax(-1).log_())
    return torch.cat(sums)


def _over_all_ranks(
    lse: Tensor, target: Tensor, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """This rank's share of each token's sum, the log-sum-exp over all ranks, the label's logit."""
    largest = lse.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    sums = torch.stack([(lse - largest).exp_(), target])
    dist.all_reduce(sums, group=group)
    total = largest + sums[0].log()
    return (lse - total).exp_(), total, sums[1]
