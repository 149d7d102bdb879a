"""What one rank does for all of them, with the same outcome everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from fixedcode_megatron.errors import UserError

T = TypeVar("T")


def one_rank_decides(
    work: Callable[[], T], *, rank: int = 0, error: type[Exception] = UserError
) -> T:
    """Run `work` on one rank alone; every rank must call it.

    Returns
    -------
    T
        What `work` returned, on every rank.

    Raises
    ------
    Exception
        An `error` of `work`, on every rank.
    """
    outcome: list[Any] = [None, None]
    failure: Exception | None = None
    if dist.get_rank() == rank:
        try:
            outcome[0] = work()
        except error as raised:
            failure, outcome[1] = raised, str(raised)
    dist.broadcast_object_list(outcome, src=rank)
    if outcome[1] is not None:
        raise failure or error(outcome[1])
    return outcome[0]
