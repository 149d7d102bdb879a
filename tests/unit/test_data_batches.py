"""Order of samples: Megatron's, resumable, the same for any number of ranks."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fixedcode_megatron.data.batches import BatchIterator
from fixedcode_megatron.data.datasets import build_datasets
from fixedcode_megatron.data.indexed import IndexedDatasetWriter
from fixedcode_megatron.errors import UserError


class Numbers:
    """Sample i is [i, i + 1, i + 2]."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        row = torch.arange(i, i + 3)
        mask = torch.ones(2)
        return {
            "tokens": row[:2], "labels": row[1:], "loss_mask": mask, "position_ids": row[:2],
            "dataset_id": np.int16(0),
        }  # fmt: skip


def ids(count, consumed, micro, rank, size, **options):
    iterator = BatchIterator(
        Numbers(count), consumed_samples=consumed, micro_batch_size=micro,
        dp_rank=rank, dp_size=size, **options,
    )  # fmt: skip
    return [batch["sample_ids"].tolist() for batch in iterator]


def test_ranks_take_turns_by_micro_batch():
    assert ids(13, 0, 2, 0, 3) == [[0, 1], [6, 7]]
    assert ids(13, 0, 2, 1, 3) == [[2, 3], [8, 9]]
    assert ids(13, 0, 2, 2, 3) == [[4, 5], [10, 11]]  # 12 is left out


def test_the_end_without_dropping():
    assert ids(9, 0, 2, 0, 3, drop_last=False) == [[0, 1], [6, 7]]
    assert ids(9, 0, 2, 1, 3, drop_last=False) == [[2, 3], [8]]
    assert ids(9, 0, 2, 2, 3, drop_last=False) == [[4, 5]]


def test_resume_and_another_number_of_ranks():
    whole = ids(64, 0, 4, 0, 1)
    assert ids(64, 24, 4, 0, 1) == whole[6:]
    for size, micro in ((1, 8), (2, 4), (4, 2), (4, 1)):
        ranks = [ids(64, 24, micro, rank, size) for rank in range(size)]
        together = [i for step in zip(*ranks, strict=True) for batch in step for i in batch]
        assert together == list(range(24, 64))


def test_consumed_samples_and_a_changed_micro_batch():
    iterator = BatchIterator(
        Numbers(20), consumed_samples=2, micro_batch_size=1, dp_rank=1, dp_size=2
    )
    assert next(iterator)["sample_ids"].tolist() == [3]
    assert iterator.consumed_samples == 4
    iterator.micro_batch_size = 3
    assert next(iterator)["sample_ids"].tolist() == [7, 8, 9]
    assert iterator.consumed_samples == 10


def test_batch_is_stacked():
    batch = next(
        BatchIterator(Numbers(4), consumed_samples=0, micro_batch_size=2, dp_rank=0, dp_size=1)
    )
    assert sorted(batch) == ["labels", "loss_mask", "position_ids", "sample_ids", "tokens"]
    assert batch["tokens"].tolist() == [[0, 1], [1, 2]]
    assert batch["labels"].tolist() == [[1, 2], [2, 3]]
    assert {key: value.dtype for key, value in batch.items()} == {
        "tokens": torch.int64, "labels": torch.int64, "position_ids": torch.int64,
        "sample_ids": torch.int64, "loss_mask": torch.float32,
    }  # fmt: skip


def test_nothing_left():
    with pytest.raises(UserError, match="4 samples are consumed, the dataset has 4"):
        ids(4, 4, 1, 0, 1)


def test_attention_masks_are_batched(tmp_path):
    with IndexedDatasetWriter(tmp_path / "d", np.uint16) as writer:
        writer.add_document([3, 0, 4, 5, 6, 7, 8, 0, 9])
        writer.commit()
    tokenizer = SimpleNamespace(vocab_size=10, eod_id=0, unique_identifiers={})
    data = SimpleNamespace(data_path=[str(tmp_path / "d")], split="1", reset_attention_mask=True)
    train, _, _ = build_datasets(data, tokenizer, seq_length=4, seed=1, samples=(2, 0, 0))
    iterator = BatchIterator(train, consumed_samples=0, micro_batch_size=2, dp_rank=0, dp_size=1)
    batch = next(iterator)
    assert batch["attention_mask"].shape == (2, 1, 4, 4)
    row = batch["tokens"].tolist().index([3, 0, 4, 5])
    assert (~batch["attention_mask"][row, 0]).int().tolist() == [
        [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1],
    ]  # fmt: skip
