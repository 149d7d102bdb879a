"""Samples for supervised fine-tuning: several conversations each, kept apart.

A conversation of n tokens makes n - 1 predictions; those of answer tokens count. Each conversation
of a sample has positions from 0 and attention to itself alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fixedcode_megatron.data.segments import block_mask


@dataclass(frozen=True)
class Document:
    """A tokenized conversation: `tokens` int32 [n], `is_answer` bool [n], n >= 2."""

    tokens: np.ndarray
    is_answer: np.ndarray


class SFTDataset:
    """Samples of packed conversations.

    `dataset[i]` is a dict of `tokens`, `labels` (each conversation's tokens shifted by one),
    `position_ids`, int64 [s], `loss_mask`, float32 [s], 1 where the label is an answer's token,
    and for several conversations a sample `attention_mask`, bool [1, s, s], True where attention
    is *not* allowed.

    Parameters
    ----------
    documents
        The conversations.
    packs
        The conversations of each sample, by number.
    length
        Number of samples to offer.
    seed
        Each pass over the packs has its own order, drawn from this seed; None keeps their order,
        and offers samples that count nothing once all were read.
    packed
        Whether samples hold several conversations.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        packs: Sequence[Sequence[int]],
        *,
        seq_length: int,
        length: int,
        seed: int | None,
        packed: bool,
    ) -> None:
        self._documents, self._packs = documents, packs
        self._seq_length, self._length = seq_length, length
        self._seed, self._packed = seed, packed
        self._order: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens, labels, positions = np.zeros((3, self._seq_length), np.int64)
        loss_mask = np.zeros(self._seq_length, np.float32)
        end, ends = 0, [0]
        for number in self._pack(index):
            document = self._documents[number]
            begin, end = end, end + len(document.tokens) - 1
            tokens[begin:end], labels[begin:end] = document.tokens[:-1], document.tokens[1:]
            loss_mask[begin:end] = document.is_answer[1:]
            positions[begin:end] = np.arange(end - begin)
            ends.append(end)
        if end < self._seq_length:
            positions[end:] = np.arange(self._seq_length - end)
            ends.append(self._seq_length)
        sample = dict(tokens=tokens, labels=labels, loss_mask=loss_mask, position_ids=positions)
        tensors = {name: torch.from_numpy(value) for name, value in sample.items()}
        if self._packed:
            tensors["attention_mask"] = block_mask(ends)
        return tensors

    @property
    def checksum(self) -> int:
        """CRC-32 of all tokens, of which of them are answers, and of the conversations' bounds."""
        value = 0
        for document in self._documents:
            value = zlib.crc32(document.tokens.tobytes(), value)
            value = zlib.crc32(document.is_answer.tobytes(), value)
            value = zlib.crc32(len(document.tokens).to_bytes(8, "little"), value)
        return value

    def _pack(self, index: int) -> Sequence[int]:
        """The conversations of a sample."""
        epoch, place = divmod(index, len(self._packs))
        if self._seed is None:
            return self._packs[place] if epoch == 0 else ()
        if self._order[0] != epoch:
            # The legacy generator: NumPy keeps its numbers the same in all releases.
            random = np.random.RandomState((self._seed + epoch) % 2**32)
            self._order = (epoch, random.permutation(len(self._packs)))
        return self._packs[self._order[1][place]]
