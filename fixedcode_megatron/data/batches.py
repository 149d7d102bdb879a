"""Micro-batches in Megatron's order, for one data-parallel rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fixedcode_megatron.errors import UserError


class BatchIterator:
    """Yield this rank's micro-batches; sample ids depend on `consumed_samples` only.

    The next `micro_batch_size * dp_size` samples of the dataset are shared out in order: rank r
    gets rows `r * micro_batch_size` to `(r + 1) * micro_batch_size - 1`. So a global batch holds
    the same samples for any number of ranks, and a run resumes at another number of ranks.

    Parameters
    ----------
    dataset
        Maps a sample id to a dict of tensors [s].
    consumed_samples
        Samples that all ranks together have used so far; kept up to date.
    micro_batch_size
        Rows per batch; may be changed between two batches.
    dp_rank, dp_size
        This rank in its data-parallel group, and the group's size.
    drop_last
        Leave out the samples at the end that do not fill a micro-batch on every rank; otherwise
        the last one is shorter (and may be missing on the last ranks).

    Yields
    ------
    dict of torch.Tensor
        `tokens`, `labels`, `position_ids` int64 [b, s], `loss_mask` float32 [b, s], `sample_ids`
        int64 [b], and `attention_mask` bool [b, 1, s, s] where the dataset makes one.

    Raises
    ------
    UserError
        If nothing is left to draw at the start.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        consumed_samples: int,
        micro_batch_size: int,
        dp_rank: int,
        dp_size: int,
        drop_last: bool = True,
    ) -> None:
        assert micro_batch_size > 0 and 0 <= dp_rank < dp_size and consumed_samples >= 0
        if consumed_samples >= len(dataset):
            raise UserError(
                f"{consumed_samples} samples are consumed, the dataset has {len(dataset)}: raise "
                "--train-iters (or --train-samples), or start a new run"
            )
        self.dataset = dataset
        self.consumed_samples = consumed_samples
        self.micro_batch_size = micro_batch_size
        self.dp_rank = dp_rank
        self.dp_size = dp_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        first = self.consumed_samples
        last = min(first + self.micro_batch_size * self.dp_size, len(self.dataset))
        short = last - first < self.micro_batch_size * self.dp_size
        if last <= first or (short and self.drop_last):
            raise StopIteration
        begin = first + self.dp_rank * self.micro_batch_size
        ids = range(begin, min(begin + self.micro_batch_size, last))
        self.consumed_samples = last
        if len(ids) == 0:
            raise StopIteration
        return collate([self.dataset[i] for i in ids], ids)


_KEYS = ("tokens", "labels", "loss_mask", "position_ids", "attention_mask")


def collate(
    samples: list[dict[str, torch.Tensor]], ids: range | list[int]
) -> dict[str, torch.Tensor]:
    """Stack samples into a batch and add their ids."""
    batch = {key: torch.stack([s[key] for s in samples]) for key in _KEYS if key in samples[0]}
    batch["sample_ids"] = torch.tensor(list(ids), dtype=torch.int64)
    return batch
