"""Fast BPE libraries as engines of a tokenizer, where they give the ids of HF tokenizers.

An engine gets the tokenizer as a `tokenizer.json` without special tokens, one document at a time,
and works on the calling thread alone. Whether its ids are right is for `engine_check` to say.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import orjson

from fixedcode_megatron.data.digits import DigitCutter, is_digits_then_gpt2
from fixedcode_megatron.data.tokenizers import Tokenizer

ENGINES = ("gigatoken", "fastokens")
# Bytes that an engine's cache of words may add before it is built anew.
_CACHE_BYTES = 96 << 20


class EngineError(Exception):
    """The engine is not installed, or cannot do this tokenizer."""


class EngineMismatch(Exception):
    """An engine gave other ids than HF tokenizers, or broke down on a document."""


class Engine(ABC):
    """Encodes documents; `missing` ids stand for bytes that the vocabulary lacks."""

    name: str

    @abstractmethod
    def encode_flat(self, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts (UTF-8), uint32 [n], and their number in each text, int64 [texts]."""


class _Gigatoken(Engine):
    """Its cache of words never shrinks, so the tokenizer is built anew when that grew large."""

    name = "gigatoken"

    def __init__(self, definition: str) -> None:
        self._library = import_module("gigatoken")
        self._definition = definition
        self._build()

    def _build(self) -> None:
        # One call per document returns a numpy array; the batch calls import awkward, a second.
        self._encode = self._library.Tokenizer.from_json(self._definition)._backend.encode
        self._limit: int | None = None

    def encode_flat(self, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        encode = self._encode
        pieces = [encode(text) for text in texts]
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        flat = np.concatenate(pieces) if pieces else np.empty(0, np.uint32)
        self._bound_cache()
        return flat, lengths

    def _bound_cache(self) -> None:
        used = _resident_bytes()
        if self._limit is None:
            self._limit = used + _CACHE_BYTES
        elif used > self._limit:
            self._build()


class _Fastokens(Engine):
    name = "fastokens"

    def __init__(self, definition: str) -> None:
        library = import_module("fastokens")
        self._inner = library.Tokenizer.from_json_str(definition)

    def encode_flat(self, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        ids, ends = self._inner.encode_batch_flat([str(text, "utf-8") for text in texts])
        lengths = np.diff(np.frombuffer(ends, "<u8").astype(np.int64))
        return np.frombuffer(ids, "<u4"), lengths


_BUILDERS: dict[str, Callable[[str], Engine]] = {"gigatoken": _Gigatoken, "fastokens": _Fastokens}


def _resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell it in this way."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except (OSError, IndexError, ValueError):
        return 0


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
        Whether documents are cut first, see `DigitCutter`.
    first_missing
        Ids from here on stand for bytes that the vocabulary lacks.
    """

    engine: str
    definition: bytes
    cut_digits: bool
    first_missing: int


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
    cut_digits = is_digits_then_gpt2(tree)
    if cut_digits:
        tree["pre_tokenizer"] = tree["pre_tokenizer"]["pretokenizers"][1]
    _add_missing_bytes(tree, tokenizer.vocab_size)
    return EnginePlan(engine, orjson.dumps(tree), cut_digits, tokenizer.vocab_size)


class FastEncoder:
    """A tokenizer's ids by an engine, with HF tokenizers for the documents the engine cannot do.

    Those are: bytes for which the vocabulary has no id (HF tokenizers drops them; here they get
    ids past the vocabulary, and such a document is encoded again), and characters that this
    Python's Unicode tables do not know.

    Parameters
    ----------
    plan
        See `plan_engine`.
    tokenizer
        Builds the tokenizer itself; called when it is first needed.

    Raises
    ------
    EngineError
        If the engine is not installed or cannot do this tokenizer.
    """

    def __init__(self, plan: EnginePlan, tokenizer: Callable[[], Tokenizer]) -> None:
        self._cutter = DigitCutter() if plan.cut_digits else None
        self._first_missing = plan.first_missing
        try:
            self._engine = _BUILDERS[plan.engine](plan.definition.decode())
        except ImportError as error:
            raise EngineError(
                f"{plan.engine} is not installed: pip install {plan.engine}"
            ) from error
        except Exception as error:  # each library raises its own kinds
            first = str(error).strip().splitlines() or [type(error).__name__]
            raise EngineError(f"{plan.engine} cannot read this tokenizer: {first[0]}") from error
        self.tokenizer = functools.cache(tokenizer)

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Tokenizer.encode_flat`."""
        if self._cutter is None:
            flat, lengths = self._run([text.encode() for text in texts])
            slow: set[int] = set()
        else:
            pieces, counts, slow = self._cutter.cut(texts)
            flat, piece_lengths = self._run(pieces)
            begins = np.cumsum(counts) - counts
            lengths = np.add.reduceat(piece_lengths, begins) if len(pieces) else counts
        if len(flat) and int(flat.max()) >= self._first_missing:
            unknown = np.flatnonzero(flat >= self._first_missing)
            slow |= set(np.searchsorted(np.cumsum(lengths), unknown, side="right").tolist())
        return self._replace(flat, lengths, texts, slow) if slow else (flat, lengths)

    def _run(self, pieces: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        try:
            return self._engine.encode_flat(pieces)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic of a Rust library is no Exception
            raise EngineMismatch(f"it failed on a document ({error})") from error

    def _replace(
        self, flat: np.ndarray, lengths: np.ndarray, texts: Sequence[str], slow: set[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Put HF tokenizers' ids in the place of those of the `slow` documents."""
        chosen = sorted(slow)
        encoded = self.tokenizer().encode_batch([texts[i] for i in chosen])
        pieces = np.split(flat, np.cumsum(lengths)[:-1])
        lengths = lengths.copy()
        for i, ids in zip(chosen, encoded, strict=True):
            pieces[i] = np.array(ids, np.uint32)
            lengths[i] = len(ids)
        return np.concatenate(pieces), lengths


def _add_missing_bytes(tree: dict, first_free: int) -> None:
    """Give every byte an id: engines insist on it, some vocabularies lack a few."""
    vocabulary = tree["model"]["vocab"]
    if not _is_byte_level(tree["pre_tokenizer"]):
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
