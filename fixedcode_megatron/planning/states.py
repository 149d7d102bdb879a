"""Bytes of parameters, gradients and optimizer state on one rank, with megatron-core's padding.

DDP lays a chunk's parameters out in one buffer, last layer first, and cuts it into buckets, each of
which the distributed optimizer shards evenly over the replicas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fixedcode_megatron.planning.parameters import Parameters, chunk_parameters
from fixedcode_megatron.planning.rank import RankShape, padded

_PARAMETER_ALIGNMENT = 64
"""Elements: with the distributed optimizer parameters start at multiples of this."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A part of a DDP buffer that is reduced at once.

    Attributes
    ----------
    size
        Elements, padding included.
    spans
        First and last-plus-one element of each parameter, from the bucket's start.
    """

    size: int
    spans: list[tuple[int, int]]

    def shard(self, replica: int, replicas: int) -> int:
        """Elements of parameters in the shard of `replica` (padding is nobody's)."""
        width = self.size // replicas
        low, high = replica * width, (replica + 1) * width
        return sum(max(0, min(end, high) - max(start, low)) for start, end in self.spans)


def buckets(rank: RankShape) -> list[list[Bucket]]:
    """The buckets of each chunk's buffer."""
    # Only where backward ends last, in the first chunk of the first stage, is anything left to hide
    # a reduction behind: elsewhere megatron-core makes a single bucket.
    return [
        _chunk_buckets(rank, parameters, None if chunk or rank.stage else rank.bucket_size)
        for chunk, parameters in enumerate(chunk_parameters(rank))
    ]


def _chunk_buckets(rank: RankShape, parameters: Parameters, limit: int | None) -> list[Bucket]:
    sharded = rank.distributed_optimizer
    found: list[Bucket] = []
    spans: list[tuple[int, int]] = []
    position = 0

    def close() -> None:
        nonlocal spans, position
        divisor = math.lcm(rank.replicas, 128, rank.ddp_padding) if sharded else 1
        found.append(Bucket(size=padded(position, divisor), spans=spans))
        spans, position = [], 0

    for _, shape in reversed(parameters):
        start = padded(position, _PARAMETER_ALIGNMENT) if sharded else position
        position = start + math.prod(shape)
        spans.append((start, position))
        if limit is not None and position >= limit:
            close()
    if spans:
        close()
    return found


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """Bytes that a rank holds all the time."""

    parameters: int
    gradients: int
    optimizer: int


def state_bytes(rank: RankShape, replica: int = 0) -> StateBytes:
    """Parameters, gradients and optimizer state of the `replica`-th copy of this rank's shard."""
    all_buckets = [bucket for chunk in buckets(rank) for bucket in chunk]
    padded_size = sum(bucket.size for bucket in all_buckets)
    if rank.distributed_optimizer:
        mine = sum(bucket.shard(replica, rank.replicas) for bucket in all_buckets)
    else:
        mine = padded_size
    # Adam's two moments, and the FP32 copy that 16-bit parameters need.
    per_element = 8 + (4 if rank.element_size == 2 else 0)
    return StateBytes(
        parameters=padded_size * rank.element_size,
        gradients=padded_size * rank.gradient_element_size,
        optimizer=mine * per_element,
    )
