"""Tokenizers behind one small interface; ids are those of the library that defines the tokenizer.

No special token is ever added, and the spelling of a special token inside a text stays text: a
web page that contains `<|endoftext|>` does not end a document.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fixedcode_megatron.errors import UserError

# Spellings of an end-of-document token, tried in this order where no tokenizer_config.json says.
EOD_SPELLINGS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]", "<EOS>")


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
    """

    name: str
    vocab_size: int
    eod_id: int | None
    fingerprint: str

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens."""

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


class HuggingFaceTokenizer(Tokenizer):
    """A `tokenizer.json`, or a folder that holds one, read by the `tokenizers` library.

    Parameters
    ----------
    model
        The file or folder. A `tokenizer_config.json` beside it names the end-of-document token
        (`eos_token`); without one the first of `EOD_SPELLINGS` in the vocabulary is taken.

    Raises
    ------
    UserError
        If there is no such file, or the library cannot read it.
    """

    def __init__(self, model: str) -> None:
        import tokenizers

        path = Path(model)
        if path.is_dir():
            path = path / "tokenizer.json"
            if not path.is_file():
                raise UserError(f"--tokenizer-model {model}: the folder holds no tokenizer.json")
        if not path.is_file():
            raise UserError(
                f"--tokenizer-model {model}: no such file; give a tokenizer.json or its folder"
            )
        content = path.read_bytes()
        try:
            inner = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
        except Exception as error:  # the library raises bare Exceptions
            raise UserError(f"--tokenizer-model {path}: not a tokenizer.json ({error})") from error
        inner.no_padding()
        inner.no_truncation()
        inner.encode_special_tokens = True  # "as text", in spite of the name
        self._inner = inner
        self.name = f"tokenizer {path}"
        self.vocab_size = max(inner.get_vocab(with_added_tokens=True).values()) + 1
        self.eod_id = _find_eod(inner, path)
        digest = hashlib.sha256(content)
        digest.update(b"eod %d" % (-1 if self.eod_id is None else self.eod_id))
        self.fingerprint = digest.hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=False)


class GPT2BPETokenizer(HuggingFaceTokenizer):
    """GPT-2's byte-level BPE from its `vocab.json` and `merges.txt`."""

    def __init__(self, vocab_file: str, merge_file: str) -> None:
        import tokenizers

        for flag, path in (("--vocab-file", vocab_file), ("--merge-file", merge_file)):
            if not Path(path).is_file():
                raise UserError(f"{flag} {path}: no such file")
        try:
            model = tokenizers.models.BPE.from_file(vocab_file, merge_file)
        except Exception as error:
            raise UserError(
                f"--vocab-file {vocab_file}, --merge-file {merge_file}: {error}"
            ) from error
        inner = tokenizers.Tokenizer(model)
        inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = tokenizers.decoders.ByteLevel()
        self._inner = inner
        self.name = f"tokenizer {vocab_file}"
        self.vocab_size = max(inner.get_vocab().values()) + 1
        self.eod_id = inner.token_to_id("<|endoftext|>")
        digest = hashlib.sha256(Path(vocab_file).read_bytes())
        digest.update(Path(merge_file).read_bytes())
        self.fingerprint = digest.hexdigest()


class ByteLevelTokenizer(Tokenizer):
    """UTF-8 bytes as ids 0 to 255, 256 ends a document. V = 257."""

    name = "ByteLevelTokenizer"
    vocab_size = 257
    eod_id = 256
    fingerprint = hashlib.sha256(b"bytes 0-255, eod 256").hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode("utf-8")) for text in texts]

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
) -> Tokenizer:
    """Build a tokenizer from Megatron's flags.

    Parameters
    ----------
    tokenizer_type
        One of `TOKENIZER_TYPES`.
    tokenizer_model, vocab_file, merge_file, vocab_size
        As the type needs them.

    Raises
    ------
    UserError
        If the type is unknown, a flag it needs is missing, or a file is missing or unreadable.
    """
    if tokenizer_type == "HuggingFaceTokenizer":
        _need(tokenizer_type, "--tokenizer-model", tokenizer_model, "FOLDER_OR_TOKENIZER_JSON")
        assert tokenizer_model is not None
        return HuggingFaceTokenizer(tokenizer_model)
    if tokenizer_type == "GPT2BPETokenizer":
        _need(tokenizer_type, "--vocab-file", vocab_file, "vocab.json")
        _need(tokenizer_type, "--merge-file", merge_file, "merges.txt")
        assert vocab_file is not None and merge_file is not None
        return GPT2BPETokenizer(vocab_file, merge_file)
    if tokenizer_type == "ByteLevelTokenizer":
        return ByteLevelTokenizer()
    if tokenizer_type == "NullTokenizer":
        _need(tokenizer_type, "--vocab-size", vocab_size, "50000")
        assert vocab_size is not None
        return NullTokenizer(vocab_size)
    known = ", ".join(TOKENIZER_TYPES)
    raise UserError(f"--tokenizer-type {tokenizer_type} is unknown: give one of {known}")


def _need(tokenizer_type: str, flag: str, value: object, example: str) -> None:
    if value is None:
        raise UserError(
            f"--tokenizer-type {tokenizer_type} needs {flag}, for example {flag} {example}"
        )


def _find_eod(inner: Any, path: Path) -> int | None:
    """Id of the end-of-document token: the config beside the file, else the usual spellings."""
    config = path.with_name("tokenizer_config.json")
    if config.is_file():
        try:
            token = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
        except (ValueError, AttributeError) as error:
            raise UserError(f"{config} is not a JSON object ({error})") from error
        if isinstance(token, dict):
            token = token.get("content")
        if token is not None:
            found = inner.token_to_id(token)
            if found is None:
                raise UserError(f"{config}: eos_token {token!r} is not in the vocabulary of {path}")
            return found
    for spelling in EOD_SPELLINGS:
        found = inner.token_to_id(spelling)
        if found is not None:
            return found
    return None
