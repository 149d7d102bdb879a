"""Documents inside a sample: where they end, positions that restart, attention that stays inside.

A document's end-of-document token belongs to it; the next token begins the next document.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch


def segment_ends(tokens: torch.Tensor, eod: int) -> torch.Tensor:
    """Bounds of the documents in one sample, as attention kernels take them (`cu_seqlens`).

    Parameters
    ----------
    tokens
        int [s].

    Returns
    -------
    torch.Tensor
        int32, strictly increasing, from 0 to s: [5, 6, E, 7, 8, E, 9, 10] gives [0, 3, 6, 8].
    """
    ends = torch.nonzero(tokens == eod).flatten() + 1
    if len(ends) == 0 or int(ends[-1]) != len(tokens):
        ends = torch.cat([ends, ends.new_tensor([len(tokens)])])
    return torch.cat([ends.new_zeros(1), ends]).to(torch.int32)


def _begins(tokens: torch.Tensor, eod: int) -> torch.Tensor:
    """bool [s]: True where a document begins after an earlier one of the sample."""
    begins = torch.zeros(len(tokens), dtype=torch.bool)
    begins[1:] = tokens[:-1] == eod
    return begins


def positions(tokens: torch.Tensor, eod: int | None) -> torch.Tensor:
    """Position of each token, int64 [s]; within its document if `eod` is given."""
    index = torch.arange(len(tokens))
    if eod is None:
        return index
    start = torch.where(_begins(tokens, eod), index, 0).cummax(0).values
    return index - start


def attention_mask(tokens: torch.Tensor, eod: int) -> torch.Tensor:
    """bool [1, s, s], True where query i must not see key j: a later one, or another document's.

    Takes one byte per pair and no copy: 1 GiB at s = 32,768, where `segment_ends` says the same
    in a few numbers.
    """
    return block_mask(segment_ends(tokens, eod).tolist())


def block_mask(bounds: Sequence[int]) -> torch.Tensor:
    """The same for documents whose bounds, from 0 to s, are known."""
    mask = torch.ones(bounds[-1], bounds[-1], dtype=torch.bool)
    for begin, end in pairwise(bounds):
        mask[begin:end, begin:end].triu_(diagonal=1)
    return mask[None]
