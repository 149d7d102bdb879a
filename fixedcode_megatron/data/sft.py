"""Datasets for supervised fine-tuning: from files of conversations to samples."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.distributed as dist

from fixedcode_megatron.data.blend import SPLITS, parse_split
from fixedcode_megatron.data.chat import ChatFormat, Span, chat_format
from fixedcode_megatron.data.conversations import Conversation, read_conversations
from fixedcode_megatron.data.packing import pack
from fixedcode_megatron.data.sft_dataset import Document, SFTDataset
from fixedcode_megatron.data.tokenizers import Tokenizer, build_tokenizer
from fixedcode_megatron.errors import UserError

logger = logging.getLogger(__name__)

_BATCH = 1024  # conversations that are tokenized at a time


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
        For every mistake in the files, naming file and line, and if ranks read different ones.
    """
    chat = chat_format(data.sft_tokenizer_prompt_format, data.tokenizer_model)
    logger.info("conversations are written as %s", chat.name)
    encoder = _encoder(data, tokenizer, chat)
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
        is_training = name == "train"
        length = count if is_training else min(count, len(packs) + -len(packs) % batch_size)
        _report(name, conversations, found, packs, seq_length, length)
        datasets.append(
            SFTDataset(
                found.documents,
                packs,
                seq_length=seq_length,
                length=length,
                seed=seed if is_training else None,
                packed=data.sft_packing,
            )
        )
    _refuse_differences([None if found is None else found.checksum for found in datasets])
    train, valid, test = datasets
    return train, valid, test


def _refuse_differences(checksums: Sequence[int | None]) -> None:
    """Every rank reads the files itself: it must find there what the others find."""
    if not dist.is_initialized():
        return
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, checksums)
    if odd := [rank for rank, others in enumerate(found) if others != found[0]]:
        raise UserError(
            f"--sft: rank {odd[0]} reads other conversations, or with another tokenizer, than rank "
            "0 does: the files must be the same on every host"
        )


def _encoder(data: Any, tokenizer: Tokenizer, chat: ChatFormat) -> Tokenizer:
    """The run's tokenizer; to it a template's special tokens must be no plain text."""
    if not chat.has_special_tokens:
        if tokenizer.eod_id is None:
            raise UserError(
                f"{tokenizer.name} has no end-of-document token, which ends answers in the format "
                f"{chat.name}: name its eos_token in a tokenizer_config.json beside it, or use a "
                "chat template"
            )
        return tokenizer
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
