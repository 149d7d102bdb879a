"""Feeds a split of the data to the schedule, and sums what went through it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state

from fixedcode_megatron.data.datasets import BatchIterator
from fixedcode_megatron.model.context_parallel import slices_of_rank
from fixedcode_megatron.training.step import Batch

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig


class DataFeed:
    """Micro-batches of one split for this rank's model chunks.

    Every rank reads its samples itself: they are memory-mapped, and reading them again costs less
    than sending them to the tensor-parallel ranks.

    Parameters
    ----------
    dataset
        A dataset of `data.datasets.build_datasets` or `data.sft.build_sft_datasets`.
    iterations
        Global batches that an evaluation reads; default: `--eval-iters`.
    """

    def __init__(self, dataset: Any, cfg: RunConfig, *, iterations: int | None = None) -> None:
        self._dataset = dataset
        self.iterations = cfg.training.eval_iters if iterations is None else iterations
        self._micro_batch_size = cfg.training.micro_batch_size
        self._num_chunks = cfg.transformer.virtual_pipeline_model_parallel_size or 1
        self._checksum = 0

    def iterators(self, consumed_samples: int) -> list[Iterator[Batch]]:
        """One iterator for each model chunk, from a position in the data that all ranks share."""
        return [
            self._iterate(consumed_samples, count=chunk == 0) for chunk in range(self._num_chunks)
        ]

    def take_checksum(self) -> int:
        """Sum of the CRC-32 of the tokens of each sample read since the last call.

        Added up over the data-parallel ranks it does not depend on the layout: two runs with equal
        sums have read the same samples.
        """
        value, self._checksum = self._checksum, 0
        return value

    @property
    def data_checksum(self) -> int:
        """Checksum of all conversations of `--sft`; 0 of other data, which nobody reads whole."""
        return getattr(self._dataset, "checksum", 0)

    def _iterate(self, consumed_samples: int, *, count: bool) -> Iterator[Batch]:
        batches = BatchIterator(
            self._dataset,
            consumed_samples=consumed_samples,
            micro_batch_size=self._micro_batch_size,
            dp_rank=parallel_state.get_data_parallel_rank(),
            dp_size=parallel_state.get_data_parallel_world_size(),
        )
        for batch in batches:
            if count:
                self._checksum += sum(zlib.crc32(row.numpy()) for row in batch["tokens"])
            del batch["sample_ids"]
            yield context_parallel_slice(
                batch,
                rank=parallel_state.get_context_parallel_rank(),
                size=parallel_state.get_context_parallel_world_size(),
            )


def context_parallel_slice(batch: Batch, *, rank: int, size: int) -> Batch:
    """This context-parallel rank's part of each sequence (see `model.context_parallel`).

    What the loss is divided by is that of the whole sequences: `num_tokens`, int32 [].
    """
    if size == 1:
        return batch
    num_tokens = batch["loss_mask"].sum().to(torch.int)
    return {"num_tokens": num_tokens} | {
        name: slices_of_rank(value, 2 if name == "attention_mask" else 1, rank=rank, size=size)
        for name, value in batch.items()
    }
