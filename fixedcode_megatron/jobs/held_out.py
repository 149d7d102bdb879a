"""The held-out samples that a run's evaluations read, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from fixedcode_megatron.data.datasets import BatchIterator, build_datasets
from fixedcode_megatron.errors import UserError

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig
    from fixedcode_megatron.data.tokenizers import Tokenizer


def held_out_samples(cfg: RunConfig) -> int:
    """Samples of an evaluation."""
    assert cfg.training.global_batch_size is not None
    return cfg.training.eval_iters * cfg.training.global_batch_size


def validation_set(cfg: RunConfig, tokenizer: Tokenizer) -> Any:
    """The dataset of these samples.

    Raises
    ------
    UserError
        If `--split` leaves none.
    """
    _, dataset, _ = build_datasets(
        cfg.data,
        tokenizer,
        seq_length=cfg.model.seq_length,
        seed=cfg.training.seed,
        samples=(0, held_out_samples(cfg), 0),
    )
    if dataset is None:
        raise UserError("--split leaves no validation documents, which this needs: give some")
    return dataset


def held_out_batches(cfg: RunConfig, dataset: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Micro-batches of an evaluation, as one process reads them."""
    size = cfg.training.micro_batch_size
    batches = BatchIterator(
        dataset, consumed_samples=0, micro_batch_size=size, dp_rank=0, dp_size=1
    )
    for _ in range(held_out_samples(cfg) // size):
        yield next(batches)
