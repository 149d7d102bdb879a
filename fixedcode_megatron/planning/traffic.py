"""Collectives as both the estimate and the rehearsal count them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Collective:
    """A kind of communication: the operation and the number of ranks that take part.

    `operation` is `all_gather`, `reduce_scatter`, `all_reduce`, `send` or `receive` (the latter two
    have a group size of 2).
    """

    operation: str
    group_size: int

    def __str__(self) -> str:
        return f"{self.operation} over {self.group_size}"


@dataclass
class Traffic:
    """Calls and bytes of each collective that one rank issues in one training step.

    Bytes are those of the whole buffer: the gathered output of an all-gather, the input of a
    reduce-scatter.
    """

    calls: Counter[Collective] = field(default_factory=Counter)
    size: Counter[Collective] = field(default_factory=Counter)

    def add(self, operation: str, group_size: int, num_bytes: int, calls: int = 1) -> None:
        """Count `calls` calls of `num_bytes` each; groups of one rank do not communicate."""
        if group_size > 1 and calls:
            key = Collective(operation, group_size)
            self.calls[key] += calls
            self.size[key] += calls * num_bytes

    def rows(self) -> list[tuple[str, int, int, int]]:
        """(operation, group size, calls, bytes), sorted."""
        return [
            (k.operation, k.group_size, self.calls[k], self.size[k]) for k in sorted(self.calls)
        ]
