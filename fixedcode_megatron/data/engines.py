"""Fast BPE libraries as engines of a tokenizer, where they give the ids of HF tokenizers.

An engine gets the tokenizer as a `tokenizer.json` and works on the calling thread alone. Many
documents are one call: after each stands a marker, a special token of ours, made of two characters
that no text should hold. Whether the ids are right is for `engine_check` to say.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import orjson

from fixedcode_megatron.data.digits import is_digits_then_gpt2
from fixedcode_megatron.data.memory import resident_bytes, return_freed_memory
from fixedcode_megatron.data.tokenizers import Tokenizer
from fixedcode_megatron.data.unassigned import split_classes

ENGINES = ("gigatoken", "fastokens")
# An engine that keeps every word is full when its process has more memory than the first, but not
# before it added the second.
_PROCESS_BYTES, _CACHE_BYTES = 195 << 20, 77 << 20
# gigatoken's table of words doubles, and for a moment both are there: four times what the doubling
# before added, after about twice the text. Where that would take more memory than this beyond the
# memory at the start, the engine is full before.
_DOUBLING_BYTES = 170 << 20
_LEAST_DOUBLING = 12 << 20  # what a call adds without one is less
# Noncharacters of Unicode: the first marker ends a document, the second is a cut inside of one.
END, CUT = "\U0010fffe\U0010ffff", "\U0010ffff\U0010fffe"


class EngineError(Exception):
    """The engine is not installed, or cannot do this tokenizer."""


class EngineMismatch(Exception):
    """An engine gave other ids than HF tokenizers, or broke down on a document."""


class Engine(ABC):
    """Encodes text of many documents."""

    name: str

    @abstractmethod
    def encode(self, text: bytes) -> np.ndarray:
        """Ids of UTF-8 text, uint32 [n]."""

    def is_full(self) -> bool:
        """Whether it keeps so much that it should be rebuilt, or be given up with its process."""
        return False

    def rebuild(self) -> None:  # noqa: B027  (most keep nothing)
        """Forget what was kept."""


class _Gigatoken(Engine):
    """Its cache of words never shrinks."""

    name = "gigatoken"

    def __init__(self, definition: bytes) -> None:
        self._library = import_module("gigatoken")
        self._definition = definition
        self.rebuild()

    def rebuild(self) -> None:
        self._backend: Any = None  # two at a time would need twice the memory
        self._backend = self._library.Tokenizer.from_json(self._definition).backend
        self._start_bytes: int | None = None
        self._text_bytes = self._doubled_at = 0
        self._most_text = math.inf
        return_freed_memory()

    def encode(self, text: bytes) -> np.ndarray:
        before = resident_bytes()
        if self._start_bytes is None:  # not yet when built: workers are forked after that
            self._start_bytes = before
        ids = self._backend.encode(text)  # a numpy array; batch calls import awkward, a second
        self._text_bytes += len(text)
        after = resident_bytes()
        added = after - before - ids.nbytes
        if added > _LEAST_DOUBLING:
            # At twice the text, if the doubling before was at about half of it; if not, the text
            # may have changed, and nothing tells.
            since = self._text_bytes - self._doubled_at
            soon = min(0.7 * self._text_bytes, since) if since > 0.4 * self._text_bytes else 0
            too_large = after + 4 * added > self._start_bytes + _DOUBLING_BYTES
            self._most_text = self._text_bytes + soon if too_large else math.inf
            self._doubled_at = self._text_bytes
        return ids

    def is_full(self) -> bool:
        if self._start_bytes is None:
            return False
        limit = max(_PROCESS_BYTES, self._start_bytes + _CACHE_BYTES)
        return resident_bytes() > limit or self._text_bytes >= self._most_text


class _Fastokens(Engine):
    name = "fastokens"

    def __init__(self, definition: bytes) -> None:
        library = import_module("fastokens")
        self._inner = library.Tokenizer.from_json_str(definition.decode())

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(self._inner.encode_batch_flat([str(text, "utf-8")])[0], "<u4")


_BUILDERS: dict[str, Callable[[bytes], Engine]] = {"gigatoken": _Gigatoken, "fastokens": _Fastokens}


@dataclass(frozen=True)
class EnginePlan:
    """All that a worker needs to build an engine: no other library, no file.

    Attributes
    ----------
    engine
        A name out of `ENGINES`.
    definition
        A `tokenizer.json` that the engine can do.
    cut_digits
        Whether documents are cut first, see `digits.cut_digits`.
    first_missing
        256 ids from here on stand for bytes that the vocabulary lacks; then come the end of a
        document and a cut.
    classes
        See `split_classes`.
    can_cut
        Whether text may be cut between a visible character of ASCII and a space or a newline.
    """

    engine: str
    definition: bytes
    cut_digits: bool
    first_missing: int
    classes: str | None
    can_cut: bool

    @property
    def end(self) -> int:
        """The id of `END`."""
        return self.first_missing + 256

    @property
    def cut(self) -> int:
        """The id of `CUT`."""
        return self.first_missing + 257


def plan_engine(tokenizer: Tokenizer, engine: str) -> EnginePlan:
    """Translate a tokenizer for an engine; `dataclasses.replace` makes it another engine's.

    Raises
    ------
    EngineError
        If the tokenizer is of a kind that no engine does.
    """
    tree = tokenizer.definition()
    if tree is None:
        raise EngineError("engines do not read tokenizers of this type")
    if tree.get("model", {}).get("type") != "BPE":
        raise EngineError("engines are for BPE tokenizers only")
    classes = split_classes(tree)
    cut_digits = is_digits_then_gpt2(tree)
    if cut_digits:
        tree["pre_tokenizer"] = tree["pre_tokenizer"]["pretokenizers"][1]
    can_cut = classes is not None and _splits_at_spaces(tree)
    _add_missing_bytes(tree, tokenizer.vocab_size)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for id_, content in enumerate((END, CUT), start=tokenizer.vocab_size + 256):
        tree["added_tokens"].append({"id": id_, "content": content, "special": True, **flags})
    return EnginePlan(
        engine, orjson.dumps(tree), cut_digits, tokenizer.vocab_size, classes, can_cut
    )


def build_engine(plan: EnginePlan) -> Engine:
    """The engine of a plan.

    Raises
    ------
    EngineError
        If the engine is not installed or cannot do this tokenizer.
    """
    try:
        return _BUILDERS[plan.engine](plan.definition)
    except ImportError as error:
        raise EngineError(f"{plan.engine} is not installed: pip install {plan.engine}") from error
    except Exception as error:  # each library raises its own kinds
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise EngineError(f"{plan.engine} cannot read this tokenizer: {first[0]}") from error


def _splits_at_spaces(tree: dict) -> bool:
    """Whether GPT-2's pattern splits text and no added token reaches over a space."""
    splitter = tree.get("pre_tokenizer") or {}
    is_gpt2 = splitter.get("type") == "ByteLevel" and splitter.get("use_regex", True)
    strips = any(t.get("lstrip") or t.get("rstrip") for t in tree["added_tokens"])
    spaced = any(" " in t["content"] for t in tree["added_tokens"])
    return is_gpt2 and not (splitter.get("add_prefix_space") or strips or spaced)


def _add_missing_bytes(tree: dict, first_free: int) -> None:
    """Give every byte an id: engines insist on it, some vocabularies lack a few."""
    vocabulary = tree["model"]["vocab"]
    if not _is_byte_level(tree.get("pre_tokenizer")):
        return
    for byte in range(256):
        spelling = _BYTE_SPELLINGS[byte]
        if spelling not in vocabulary:
            vocabulary[spelling] = first_free
            first_free += 1


def _is_byte_level(pre_tokenizer: dict | None) -> bool:
    parts = [pre_tokenizer or {}, *(pre_tokenizer or {}).get("pretokenizers", [])]
    return any(part.get("type") == "ByteLevel" for part in parts)


def _byte_spellings() -> list[str]:
    """The characters that byte-level vocabularies write for the bytes 0 to 255 (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(b if b in printable else 256 + others.index(b)) for b in range(256)]


_BYTE_SPELLINGS = _byte_spellings()
