"""Tokenizers behind one small interface; ids are those of the library that defines the tokenizer.

No special token is ever added, and the spelling of a special token inside a text stays text unless
asked otherwise: a web page that contains `<|endoftext|>` does not end a document.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from fixedcode_megatron.errors import UserError

_T = TypeVar("_T")


class Tokenizer(ABC):
    """What preprocessing and training need to know about a tokenizer.

    Attributes
    ----------
    name
        What the user asked for, for messages.
    vocab_size
        Largest id + 1, added tokens included.
    eod_id
        Id that ends a document, or None where the tokenizer has none.
    fingerprint
        SHA-256 over everything that fixes the ids; the path does not count.
    added_spellings
        Spellings outside the model proper, special or not: engines are tried on them.
    """

    name: str
    vocab_size: int
    eod_id: int | None
    fingerprint: str
    added_spellings: Sequence[str] = ()

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens."""

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts one after the other, [n] of an integer type, and each text's number of
        ids, int64 [texts]."""
        encoded = self.encode_batch(texts)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        flat = np.empty(int(lengths.sum()), np.int32)
        begin = 0
        for ids in encoded:
            flat[begin : begin + len(ids)] = ids
            begin += len(ids)
        return flat, lengths

    def definition(self) -> dict[str, Any] | None:
        """The tokenizer as the tree of a `tokenizer.json`, or None if it has no such form.

        Where special spellings are text, its special tokens are left out.
        """
        return None

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included."""

    @property
    def eod(self) -> int:
        """Id that ends a document.

        Raises
        ------
        UserError
            If the tokenizer has none.
        """
        if self.eod_id is None:
            raise UserError(
                f"{self.name} has no end-of-document token, which --append-eod needs: name its "
                "eos_token in a tokenizer_config.json beside it, or leave --append-eod out"
            )
        return self.eod_id

    @property
    def unique_identifiers(self) -> OrderedDict[str, object]:
        """What megatron-core's dataset caches are keyed by."""
        return OrderedDict(
            kind=type(self).__name__, fingerprint=self.fingerprint, vocab_size=self.vocab_size
        )


class ByteLevelTokenizer(Tokenizer):
    """UTF-8 bytes as ids 0 to 255, 256 ends a document. V = 257."""

    name = "ByteLevelTokenizer"
    vocab_size = 257
    eod_id = 256
    fingerprint = hashlib.sha256(b"bytes 0-255, eod 256").hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode("utf-8")) for text in texts]

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        encoded = [text.encode("utf-8") for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.frombuffer(b"".join(encoded), np.uint8), lengths

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")


class NullTokenizer(Tokenizer):
    """Texts that are numbers already, "5 17 3"; the id after the last one ends a document.

    Parameters
    ----------
    vocab_size
        Number of ordinary ids (Megatron's `--vocab-size`); the tokenizer's own is one larger.
    """

    def __init__(self, vocab_size: int) -> None:
        self.name = "NullTokenizer"
        self.vocab_size = vocab_size + 1
        self.eod_id = vocab_size
        self.fingerprint = hashlib.sha256(b"numbers below %d" % vocab_size).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._id(word) for word in text.split()] for text in texts]

    def _id(self, word: str) -> int:
        if not word.isascii() or not word.isdigit() or int(word) >= self.vocab_size:
            raise UserError(
                f"NullTokenizer takes numbers below {self.vocab_size}, found {word[:40]!r}"
            )
        return int(word)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(int(i)) for i in ids)


TOKENIZER_TYPES = (
    "HuggingFaceTokenizer",
    "GPT2BPETokenizer",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "TikTokenizer",
    "ByteLevelTokenizer",
    "NullTokenizer",
)


def build_tokenizer(
    tokenizer_type: str,
    tokenizer_model: str | None = None,
    vocab_file: str | None = None,
    merge_file: str | None = None,
    *,
    vocab_size: int | None = None,
    tiktoken_pattern: str | None = None,
    tiktoken_special_tokens: Sequence[str] | None = None,
    parse_special_tokens: bool = False,
) -> Tokenizer:
    """Build a tokenizer from Megatron's flags.

    Parameters
    ----------
    tokenizer_type
        One of `TOKENIZER_TYPES`.
    tokenizer_model, vocab_file, merge_file, vocab_size, tiktoken_pattern, tiktoken_special_tokens
        As the type needs them.
    parse_special_tokens
        Spellings of special tokens inside a text become those tokens.

    Raises
    ------
    UserError
        If the type is unknown, a flag it needs is missing, a file is missing or unreadable, or
        the library that reads it is not installed.
    """
    special = parse_special_tokens
    if tokenizer_type == "HuggingFaceTokenizer":
        from fixedcode_megatron.data.hf_tokenizers import HuggingFaceTokenizer

        model = _needed(
            tokenizer_type, "--tokenizer-model", tokenizer_model, "FOLDER_OR_TOKENIZER_JSON"
        )
        return HuggingFaceTokenizer(model, parse_special_tokens=special)
    if tokenizer_type == "GPT2BPETokenizer":
        from fixedcode_megatron.data.hf_tokenizers import GPT2BPETokenizer

        vocab = _needed(tokenizer_type, "--vocab-file", vocab_file, "vocab.json")
        merges = _needed(tokenizer_type, "--merge-file", merge_file, "merges.txt")
        return GPT2BPETokenizer(vocab, merges, parse_special_tokens=special)
    if tokenizer_type in ("SentencePieceTokenizer", "GPTSentencePieceTokenizer"):
        from fixedcode_megatron.data.sentencepiece_tokenizer import SentencePieceTokenizer

        model = _needed(tokenizer_type, "--tokenizer-model", tokenizer_model, "tokenizer.model")
        return SentencePieceTokenizer(model, parse_special_tokens=special)
    if tokenizer_type == "TikTokenizer":
        from fixedcode_megatron.data.tiktoken_tokenizer import TikTokenizer

        model = _needed(tokenizer_type, "--tokenizer-model", tokenizer_model, "o200k_base.tiktoken")
        return TikTokenizer(
            model, tiktoken_pattern, tiktoken_special_tokens, parse_special_tokens=special
        )
    if tokenizer_type == "ByteLevelTokenizer":
        return ByteLevelTokenizer()
    if tokenizer_type == "NullTokenizer":
        return NullTokenizer(_needed(tokenizer_type, "--vocab-size", vocab_size, "50000"))
    known = ", ".join(TOKENIZER_TYPES)
    raise UserError(f"--tokenizer-type {tokenizer_type} is unknown: give one of {known}")


def _needed(tokenizer_type: str, flag: str, value: _T | None, example: str) -> _T:
    if value is None:
        raise UserError(
            f"--tokenizer-type {tokenizer_type} needs {flag}, for example {flag} {example}"
        )
    return value
