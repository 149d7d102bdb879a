"""Causal attention on CPUs by batched matrix products over blocks of queries.

torch's own kernel for CPUs computes the scores again in its backward pass, in products of small
tiles. Here the probabilities are kept, so that forward and backward together take half the time at
a sequence length of 512; their memory grows with the square of the length, which bounds its use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

_BLOCK = 128
"""Queries of a block: the keys behind its last one are left out of the product."""

_KEPT_BYTES = 64 * 2**20
"""The most that a layer keeps for its backward pass; with more, torch's kernel is used."""


def applies(query: Tensor) -> bool:
    """Whether `causal_attention` is the faster one for a query [s, b, heads, d]."""
    length, batch, heads, _ = query.shape
    fits = kept_bytes(length, batch * heads) > 0
    return fits and query.device.type == "cpu" and query.dtype == torch.float32


def kept_bytes(length: int, heads: int) -> int:
    """Bytes that `causal_attention` keeps for `heads` heads; 0 where it is not the faster one."""
    size = 4 * heads * sum((end - begin) * end for begin, end in _blocks(length))
    return size if length > 2 * _BLOCK and size <= _KEPT_BYTES else 0


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Each position attends to itself and to those before it.

    Parameters
    ----------
    query
        FP32 [s, b, heads, d].
    key, value
        FP32 [s, b, query groups, d]; the number of groups divides that of heads.
    scale
        What scores are multiplied by.

    Returns
    -------
    Tensor
        FP32 [s, b, heads, d].
    """
    return cast(Tensor, _CausalAttention.apply(query, key, value, scale))


class _CausalAttention(torch.autograd.Function):
    """With P = softmax(scale Q K^T): dV = P^T dO, dS = P (dO V^T - rows' sums of dO O)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        groups = key.shape[2]
        q, k, v = _by_group(query, groups), _by_group(key, groups), _by_group(value, groups)
        q, k, v = q * scale, k.squeeze(1), v.squeeze(1)
        result, kept = torch.empty_like(q), []
        for begin, end in _blocks(len(query)):
            rows = q[:, :, begin:end].flatten(1, 2)
            scores = torch.bmm(rows, k[:, :end].mT).unflatten(1, (q.shape[1], -1))
            later = torch.ones(end - begin, end - begin, dtype=torch.bool).triu_(1)
            scores[..., begin:].masked_fill_(later, float("-inf"))
            probabilities = torch.softmax(scores, -1, out=scores).flatten(1, 2)
            result[:, :, begin:end] = torch.bmm(probabilities, v[:, :end]).unflatten(
                1, (q.shape[1], -1)
            )
            kept.append(probabilities)
        ctx.save_for_backward(q, k, v, result, *kept)
        ctx.scale, ctx.batch = scale, query.shape[1]
        return _by_position(result, query.shape[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, result, *kept = ctx.saved_tensors
        grad = _by_group(grad, k.shape[0] // ctx.batch)
        sums = (grad * result).sum(-1, keepdim=True)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for (begin, end), probabilities in zip(_blocks(q.shape[2]), kept, strict=True):
            rows, upstream = (x[:, :, begin:end].flatten(1, 2) for x in (q, grad))
            grad_v[:, :end].baddbmm_(probabilities.mT, upstream)
            scores = torch.bmm(upstream, v[:, :end].mT)
            scores.sub_(sums[:, :, begin:end].flatten(1, 2)).mul_(probabilities)
            grad_q[:, :, begin:end] = torch.bmm(scores, k[:, :end]).unflatten(1, (q.shape[1], -1))
            grad_k[:, :end].baddbmm_(scores.mT, rows)
        found = (grad_q.mul_(ctx.scale), grad_k.unsqueeze(1), grad_v.unsqueeze(1))
        return *(_by_position(x, ctx.batch) for x in found), None


def _blocks(length: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, length, _BLOCK):
        yield begin, min(begin + _BLOCK, length)


def _by_group(x: Tensor, groups: int) -> Tensor:
    """[s, b, heads, d] as contiguous [b groups, heads of a group, s, d]."""
    length, batch, heads, width = x.shape
    return x.permute(1, 2, 0, 3).reshape(batch * groups, heads // groups, length, width)


def _by_position(x: Tensor, batch: int) -> Tensor:
    """The way back, as a view."""
    groups_of_all, heads, length, width = x.shape
    return x.view(batch, groups_of_all // batch * heads, length, width).permute(2, 0, 1, 3)
