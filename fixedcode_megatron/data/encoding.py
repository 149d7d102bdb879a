"""A worker's part of preprocessing: read an item, tokenize its documents, append the EOD id."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from fixedcode_megatron.data.characters import tables
from fixedcode_megatron.data.compiled import library
from fixedcode_megatron.data.documents import Rejected
from fixedcode_megatron.data.engine_check import Sample
from fixedcode_megatron.data.engines import ENGINES, EnginePlan
from fixedcode_megatron.data.fast_encoder import FastEncoder, OwnIds, Pending
from fixedcode_megatron.data.json_lines import JsonLinesReader
from fixedcode_megatron.data.marked_text import MarkedText
from fixedcode_megatron.data.sentences import make_splitter
from fixedcode_megatron.data.sources import JsonLines, Lines, Payload
from fixedcode_megatron.data.tokenizers import Tokenizer, build_tokenizer
from fixedcode_megatron.errors import UserError

_BATCH_CHARACTERS = 1 << 18  # the tokenizers library keeps about 50 bytes a token for a batch
_SPOT_BLOCKS, _SPOT_BYTES = 2, 512  # so much of so many blocks is compared


@dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """How documents become ids; picklable.

    Attributes
    ----------
    tokenizer
        Keyword arguments of `build_tokenizer`.
    engine
        A fast engine that was checked, or None for the tokenizer itself.
    keys
        Keys of the texts.
    eod
        Id to append to each document, or None.
    vocab_size, dtype
        Bound of the ids and the name of their type.
    stop
        Stop at the first line that is no document.
    splitter, language, keep_newlines
        Name of a sentence splitter and its settings; None keeps documents whole.
    """

    tokenizer: dict[str, Any]
    engine: EnginePlan | None
    keys: tuple[str, ...]
    eod: int | None
    vocab_size: int
    dtype: str
    stop: bool = True
    splitter: str | None = None
    language: str = "english"
    keep_newlines: bool = False


@dataclass
class EncodedColumn:
    """Documents of one key.

    Attributes
    ----------
    ids
        Of all documents, one after the other.
    lengths
        Of each sequence, int32; without sentence splitting a sequence is a document.
    sequences
        With sentence splitting, each document's number of sequences, int32; else None.
    ended
        Whether the EOD id is there already.
    pending
        What is left to the caller, see `put_in_pending`.
    """

    ids: np.ndarray
    lengths: np.ndarray
    sequences: np.ndarray | None = None
    ended: bool = False
    pending: list[Pending] = field(default_factory=list)


@dataclass
class EncodedBlock:
    """What a worker makes of an item.

    Attributes
    ----------
    columns
        One for each key.
    rejected
        Lines that are no documents, blank ones left out.
    counts
        How many lines or records gave no document, by kind, with "blank" and "empty".
    lines
        Lines or rows of the item.
    own
        For a comparison with HF tokenizers: of a `Sample`; now and then, of a piece of a document.
    """

    columns: list[EncodedColumn]
    rejected: list[Rejected] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)
    lines: int = 0
    own: OwnIds | None = None


class BlockEncoder:
    """Encodes items after `EncoderSpec`. Built once in each worker."""

    def __init__(self, spec: EncoderSpec) -> None:
        self._spec = spec
        self._tokenizer = functools.cache(lambda: build_tokenizer(**spec.tokenizer))
        self._fast = FastEncoder(spec.engine, self._tokenizer) if spec.engine else None
        self._split = None
        if spec.splitter:
            self._split = make_splitter(
                spec.splitter, spec.language, keep_newlines=spec.keep_newlines
            )
        self._reader = None
        if self._fast and len(spec.keys) == 1 and not spec.splitter:
            self._reader = JsonLinesReader(spec.keys[0], self._fast.kinds)
        self._last = MarkedText.of([])
        self._blocks = 0

    def __call__(self, payload: Payload) -> EncodedBlock:
        if isinstance(payload, Sample):
            assert self._fast is not None
            return EncodedBlock([], own=self._fast.encode_alone(payload.texts))
        if self._fast is not None and self._fast.engine.is_full():
            self._fast.engine.rebuild()
        text = None
        if self._reader is not None and isinstance(payload, JsonLines):
            payload = Lines(payload.load(), first=False)  # loaded once, whoever reads it
            text = self._reader.read(payload.data)
        rejected: list[Rejected] = []
        counts: Counter[str] = Counter()
        if text is not None:
            columns, lines = [self._encode_marked(text)], len(text)
        else:
            records = payload.read(self._spec.keys)
            # a blank line is no mistake
            rejected = [r for r in records.rejected if r.kind != "blank"]
            if rejected and self._spec.stop:
                return EncodedBlock([], rejected[:1])
            counts.update(r.kind for r in records.rejected)
            columns, lines = [self._encode(texts) for texts in records.columns], records.lines
        counts["empty"] = self._drop_empty(columns)
        if self._spec.eod is not None:
            for column in columns:
                if not column.ended:
                    _append(column, self._spec.eod)
        return EncodedBlock(columns, rejected, +counts, lines, self._spot_check())

    @property
    def is_spent(self) -> bool:
        """Whether a new process should go on, with an engine that keeps nothing yet.

        Not if this one has loaded HF tokenizers, which takes longer than to build an engine.
        """
        loaded = self._tokenizer.cache_info().currsize
        return self._fast is not None and not loaded and self._fast.engine.is_full()

    def _encode(self, texts: list[str]) -> EncodedColumn:
        sequences = None
        if self._split is not None:
            split = [self._split(text) for text in texts]
            sequences = np.fromiter(map(len, split), np.int32, len(split))
            texts = [sentence for sentences in split for sentence in sentences]
        if self._fast is None:
            ids, lengths = self._encode_slowly(texts)
        else:
            return self._encode_marked(MarkedText.of(texts), sequences)
        return self._column(ids, lengths, sequences)

    def _encode_marked(
        self, text: MarkedText, sequences: np.ndarray | None = None
    ) -> EncodedColumn:
        assert self._fast is not None
        self._last = text
        eod = self._spec.eod if sequences is None else None
        found, pending = self._fast.encode_marked(text, self._spec.dtype, eod)
        column = self._column(found.ids, found.lengths, sequences)
        column.ended, column.pending = eod is not None, pending
        return column

    def _column(
        self, ids: np.ndarray, lengths: np.ndarray, sequences: np.ndarray | None
    ) -> EncodedColumn:
        ids = ids.astype(self._spec.dtype, copy=False)
        column = EncodedColumn(ids, lengths.astype(np.int32), sequences)
        if sequences is not None:  # a sentence without a token is no sequence
            documents = np.repeat(np.arange(len(sequences)), sequences)
            filled = column.lengths > 0
            column.sequences = np.bincount(documents[filled], minlength=len(sequences))
            column.lengths = column.lengths[filled]
        return column

    def _encode_slowly(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        tokenizer = self._tokenizer()
        try:
            parts = [tokenizer.encode_flat(batch) for batch in _batches(texts)]
        except UserError:
            raise
        except Exception as error:  # the tokenizers library raises bare Exceptions
            raise UserError(f"{tokenizer.name} cannot encode a document: {error}") from error
        if not parts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        ids = np.concatenate([part[0] for part in parts])
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self._spec.vocab_size:
            raise UserError(f"{tokenizer.name} gave an id outside 0 to {self._spec.vocab_size - 1}")
        return ids, np.concatenate([part[1] for part in parts])

    def _spot_check(self) -> OwnIds | None:
        """Now and then a piece of one document.

        And what the engine said for itself about characters that the tables lack.
        """
        if self._fast is None:
            return None
        pieces = self._fast.proofs()
        self._blocks += 1
        if self._blocks % _SPOT_BLOCKS == 1:
            pieces.append(self._last.piece(_SPOT_BYTES))
        return self._fast.encode_alone(pieces) if pieces else None

    @staticmethod
    def _drop_empty(columns: list[EncodedColumn]) -> int:
        """Drop the records that have no token under any key, and count them."""
        sizes = [c.lengths if c.sequences is None else c.sequences for c in columns]
        filled = np.any([size > 0 for size in sizes], axis=0)
        if filled.all():
            return 0
        for column in columns:
            if column.sequences is None:
                column.lengths = column.lengths[filled]
            else:
                column.sequences = column.sequences[filled]
        return int(np.count_nonzero(~filled))


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Runs of texts of a bounded number of characters (one text may be longer)."""
    begin = characters = 0
    for end, text in enumerate(texts, start=1):
        characters += len(text)
        if characters >= _BATCH_CHARACTERS or end == len(texts):
            yield texts[begin:end]
            begin, characters = end, 0


def _append(column: EncodedColumn, eod: int) -> None:
    """Append `eod` to every document that has a token; in place of nothing, nothing."""
    if column.sequences is None:
        last = column.lengths > 0
    else:
        last = np.zeros(len(column.lengths), bool)
        last[np.cumsum(column.sequences)[column.sequences > 0] - 1] = True
    lengths = column.lengths + last.astype(np.int32)
    ids = np.empty(len(column.ids) + int(np.count_nonzero(last)), column.ids.dtype)
    places = np.cumsum(lengths, dtype=np.int64)[last] - 1
    others = np.ones(len(ids), bool)
    others[places] = False
    ids[others] = column.ids
    ids[places] = eod
    column.ids, column.lengths = ids, lengths


def put_in_pending(block: EncodedBlock, tokenizer: Tokenizer) -> None:
    """Encode the pieces that a worker left to who has HF tokenizers."""
    for column in block.columns:
        if not column.pending:
            continue
        places = np.array([piece.place for piece in column.pending])
        documents = np.searchsorted(np.cumsum(column.lengths), places, side="right")
        encoded = tokenizer.encode_batch([piece.text for piece in column.pending])
        sizes = [len(ids) for ids in encoded]
        flat = np.array([id_ for ids in encoded for id_ in ids], column.ids.dtype)
        column.ids = np.insert(column.ids, np.repeat(places, sizes), flat)
        np.add.at(column.lengths, documents, np.array(sizes, np.int32))
        column.pending = []


def make_encoder(spec: EncoderSpec) -> Callable[[Payload], EncodedBlock]:
    """What `WorkerPool.map` calls in each worker."""
    return BlockEncoder(spec)


def preload() -> None:
    """Load what most encoders need and all workers share, before the work is known."""
    tables()
    library()
    with contextlib.suppress(ImportError):
        import_module(ENGINES[0])
