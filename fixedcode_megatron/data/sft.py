"""Datasets for supervised fine-tuning: packed conversations whose answers alone count in the loss.

A conversation of n tokens makes n - 1 predictions; those of answer tokens count. Several
conversations share a sample, each with positions from 0 and attention to itself alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fixedcode_megatron.data.blend import SPLITS, parse_split
from fixedcode_megatron.data.chat import ChatFormat, Span, chat_format
from fixedcode_megatron.data.conversations import Conversation, read_conversations
from fixedcode_megatron.data.packing import pack
from fixedcode_megatron.data.segments import block_mask
from fixedcode_megatron.data.tokenizers import Tokenizer, build_tokenizer
from fixedcode_megatron.errors import UserError

logger = logging.getLogger(__name__)

_BATCH = 1024  # conversations that are tokenized at a time


@dataclass(frozen=True)
class Document:
    """A tokenized conversation: `tokens` int32 [n], `is_answer` bool [n], n >= 2."""

    tokens: np.ndarray
    is_answer: np.ndarray


@dataclass
class Documents:
    """What is left of conversations after tokenization.

    Attributes
    ----------
    cut
        Conversations that were longer than a sample and lost their end.
    left_out
        Conversations without an answer token within a sample.
    """

    documents: list[Document]
    cut: int = 0
    left_out: int = 0


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


def build_sft_datasets(
    data: Any,
    tokenizer: Tokenizer,
    *,
    seq_length: int,
    seed: int,
    train_samples: int,
    held_out_samples: int,
    batch_size: int,
) -> tuple[SFTDataset | None, SFTDataset | None, SFTDataset | None]:
    """Build the training, validation and test datasets of `--sft`.

    Parameters
    ----------
    data
        The flags: `data_path` (with `split`, shares of each file's conversations in their order) or
        `train_data_path` and its like, of files of JSON lines; `sft_packing`,
        `sft_tokenizer_prompt_format`, and what names the tokenizer.
    train_samples
        Samples that training reads; 0 builds no training data.
    held_out_samples
        The most samples of validation and of test; 0 builds neither. Their number is rounded up to
        a multiple of `batch_size` with samples that count nothing.

    Raises
    ------
    UserError
        For every mistake in the files, naming file and line.
    """
    chat = chat_format(data.sft_tokenizer_prompt_format, data.tokenizer_model)
    if chat.has_special_tokens:
        encoder = _with_special_tokens(data)
    else:
        encoder = tokenizer
        tokenizer.eod  # noqa: B018 - refuses a tokenizer that cannot end an answer
    logger.info("conversations are written as %s", chat.name)
    wanted = (train_samples, held_out_samples, held_out_samples)
    parts = _conversations(data, [count != 0 for count in wanted])
    datasets: list[SFTDataset | None] = []
    for name, conversations, count in zip(SPLITS, parts, wanted, strict=True):
        if not conversations or count == 0:
            datasets.append(None)
            continue
        found = tokenized(conversations, encoder, chat, seq_length)
        if not found.documents:
            raise UserError(
                f"--sft: none of the {len(conversations)} {name} conversations has an answer "
                f"within --seq-length {seq_length}"
            )
        packs = [[i] for i in range(len(found.documents))]
        if data.sft_packing:
            packs = pack([len(document.tokens) - 1 for document in found.documents], seq_length)
        if name != "train":
            count = -(-min(count, len(packs)) // batch_size) * batch_size
        _report(name, conversations, found, packs, seq_length, count)
        dataset = SFTDataset(
            found.documents,
            packs,
            seq_length=seq_length,
            length=count,
            seed=seed if name == "train" else None,
            packed=data.sft_packing,
        )
        datasets.append(dataset)
    train, valid, test = datasets
    return train, valid, test


def _with_special_tokens(data: Any) -> Tokenizer:
    """The run's tokenizer, to which a template's special tokens are no plain text."""
    return build_tokenizer(
        data.tokenizer_type or "HuggingFaceTokenizer",
        data.tokenizer_model,
        data.vocab_file,
        data.merge_file,
        tiktoken_pattern=data.tiktoken_pattern,
        tiktoken_special_tokens=data.tiktoken_special_tokens,
        parse_special_tokens=True,
    )


def _conversations(data: Any, wanted: Sequence[bool]) -> list[list[Conversation]]:
    """The conversations of each split that is wanted; the others are not read."""
    if not data.data_path:
        own = [getattr(data, f"{name}_data_path") for name in SPLITS]
        return [
            [found for path in paths or [] for found in read_conversations(path)] if want else []
            for paths, want in zip(own, wanted, strict=True)
        ]
    parts: list[list[Conversation]] = [[] for _ in SPLITS]
    for path in data.data_path:
        found = read_conversations(path)
        for part, bounds, want in zip(parts, parse_split(data.split), wanted, strict=True):
            if bounds and want:
                first, end = (round(bound * len(found)) for bound in bounds)
                part += found[first:end]
    return parts


def tokenized(
    conversations: Iterable[Conversation], tokenizer: Tokenizer, chat: ChatFormat, seq_length: int
) -> Documents:
    """Tokenize conversations; what does not fit into a sample is cut or left out, and counted."""
    spans = [chat.spans(conversation) for conversation in conversations]
    result = Documents([])
    for first in range(0, len(spans), _BATCH):
        block = spans[first : first + _BATCH]
        ids = iter(tokenizer.encode_batch([span.text for found in block for span in found]))
        for found in block:
            _add(result, [(span, next(ids)) for span in found], tokenizer, seq_length)
    return result


def _add(
    result: Documents, spans: list[tuple[Span, list[int]]], tokenizer: Tokenizer, seq_length: int
) -> None:
    tokens: list[int] = []
    is_answer: list[bool] = []
    for span, ids in spans:
        ids = [*ids, tokenizer.eod] if span.ends else ids
        tokens += ids
        is_answer += [span.is_answer] * len(ids)
    limit = seq_length + 1  # the last token is a label alone
    if not any(is_answer[1:limit]):
        result.left_out += 1
        return
    result.cut += len(tokens) > limit
    result.documents.append(
        Document(np.array(tokens[:limit], np.int32), np.array(is_answer[:limit], bool))
    )


def _report(
    name: str,
    conversations: Sequence[Conversation],
    found: Documents,
    packs: Sequence[Sequence[int]],
    seq_length: int,
    count: int,
) -> None:
    lengths = [len(document.tokens) - 1 for document in found.documents]
    answers = sum(int(document.is_answer[1:].sum()) for document in found.documents)
    logger.info(
        "%s: %d conversations with %d answer tokens in %d samples of %d tokens, %.0f %% full; %d "
        "were cut at --seq-length, %d left out: no answer within it",
        name,
        len(conversations),
        answers,
        len(packs),
        seq_length,
        100 * sum(lengths) / (len(packs) * seq_length),
        found.cut,
        found.left_out,
    )
    if name == "train":
        logger.info("the run reads %d samples: %.2f passes", count, count / len(packs))
    elif count < len(packs):
        logger.warning("%s reads %d of %d samples: --eval-iters", name, count, len(packs))
