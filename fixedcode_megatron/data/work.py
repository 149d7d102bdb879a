"""All inputs of a run as one sequence of items, of which a shard takes its part."""

from __future__ import annotations

import itertools
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fixedcode_megatron.data import sources, tables
from fixedcode_megatron.data.ahead import read_ahead
from fixedcode_megatron.data.hub import HubDataset
from fixedcode_megatron.data.inputs import expand_inputs, kind_of
from fixedcode_megatron.data.sources import Item, rejection
from fixedcode_megatron.data.workers import available_cores
from fixedcode_megatron.errors import UserError

_UNPACKED_AT_ONCE = 8  # compressed files
_SAMPLE_FILES = 4
_SAMPLE_CHARACTERS = 160_000
_SAMPLE_DOCUMENT = 20_000


@dataclass(frozen=True)
class Position:
    """How far a run has come.

    Attributes
    ----------
    file, offset
        Index of the file and the offset in it after the last item, see `Item.end`.
    lines
        Lines or rows of that file that were read, for the places of rejected ones.
    """

    file: int = 0
    offset: int = 0
    lines: int = 0


class Inputs(Protocol):
    """What a run reads: files, or a dataset of Hugging Face."""

    names: list[str]
    total_bytes: int
    resumable: bool

    def identity(self) -> list[Any]:
        """What must not change between an interrupted run and its continuation, for JSON."""
        ...

    def items(self, position: Position) -> Iterator[Item]:
        """All items of this shard after `position`, in order."""
        ...

    def sample(self) -> list[str]:
        """A few documents from several places."""
        ...

    def lines_before(self, file: int) -> int:
        """Lines of a file that come before this shard's part of it."""
        ...


def open_inputs(
    patterns: Sequence[str],
    dataset: HubDataset | None,
    keys: Sequence[str],
    shard: int = 0,
    shards: int = 1,
) -> Inputs:
    """Inputs of `--input` or `--hf-dataset`.

    Raises
    ------
    UserError
        If both or neither are given, or they cannot be found.
    """
    if bool(patterns) == (dataset is not None):
        raise UserError("give either --input or --hf-dataset")
    if dataset is not None:
        return HubInputs(dataset, keys, shard, shards)
    return FileInputs(patterns, keys, shard, shards)


def read_texts(inputs: Inputs, keys: Sequence[str], *, stop: bool) -> Iterator[str]:
    """Yield the texts of all documents, one after the other, in this process.

    Raises
    ------
    UserError
        With file and line at the first line that is no document, if `stop` is true; otherwise
        such lines are left out.
    """
    file, lines = -1, 0
    for item in inputs.items(Position()):
        if item.file != file:
            file, lines = item.file, 0
        records = item.payload.read(keys)
        for rejected in records.rejected:
            if stop and rejected.kind != "blank":
                raise rejection(item, lines, rejected)
        lines += records.lines
        for record in zip(*records.columns, strict=True):
            yield from record


class FileInputs:
    """Files, in the order of `expand_inputs`.

    Shard i of n takes the i-th of n equal parts of all bytes: lines of plain files and row groups
    of parquet files that begin there, and compressed, text and arrow files whose first byte lies
    there. So the shards' outputs one after the other are the whole run's output.
    """

    def __init__(
        self, patterns: Sequence[str], keys: Sequence[str], shard: int = 0, shards: int = 1
    ) -> None:
        self.files = expand_inputs(patterns)
        self.names = [str(path) for path in self.files]
        self._keys = tuple(keys)
        self._sizes = [path.stat().st_size for path in self.files]
        self._begins = [0, *itertools.accumulate(self._sizes)]
        everything = self._begins[-1]
        self._low, self._high = everything * shard // shards, everything * (shard + 1) // shards
        self._all = shards == 1
        self.total_bytes = self._high - self._low
        self.resumable = all(stat.S_ISREG(path.stat().st_mode) for path in self.files)

    def identity(self) -> list[Any]:
        stats = [(path, path.stat()) for path in self.files]
        files = [[str(path.resolve()), s.st_size, s.st_mtime_ns] for path, s in stats]
        return [*files, self._low, self._high]

    def items(self, position: Position) -> Iterator[Item]:
        chosen = [
            index
            for index in range(position.file, len(self.files))
            if self._all
            or (self._begins[index] < self._high and self._begins[index + 1] > self._low)
        ]
        parts = (
            self._items_of(index, position.offset if index == position.file else 0)
            for index in chosen
        )
        if len(chosen) > 1 and all(kind_of(self.files[i]) == "packed lines" for i in chosen):
            return read_ahead(parts, min(available_cores(), _UNPACKED_AT_ONCE))
        return itertools.chain.from_iterable(parts)

    def _items_of(self, index: int, start: int) -> Iterator[Item]:
        path = self.files[index]
        begin = self._begins[index]
        low, high = max(self._low - begin, 0), self._high - begin
        kind = kind_of(path)
        if kind == "lines" and self.resumable:
            yield from sources.line_items(index, path, start, low, high)
        elif kind == "parquet":
            yield from tables.parquet_items(index, path, start, low, high, self._keys)
        elif low == 0:
            if kind in ("lines", "packed lines"):
                yield from sources.stream_items(index, path, start)
            elif kind == "text":
                yield from sources.text_items(index, path, start)
            else:
                yield from tables.arrow_items(index, path, start, self._keys)

    def sample(self) -> list[str]:
        if not self.resumable:
            return []
        last = len(self.files) - 1
        chosen = sorted({last * i // (_SAMPLE_FILES - 1) for i in range(_SAMPLE_FILES)})
        budget = _SAMPLE_CHARACTERS // len(chosen)
        return [
            text
            for index in chosen
            for text in _clip(self._sample_items(index), self._keys, budget)
        ]

    def _sample_items(self, index: int) -> Iterator[Item]:
        path, size = self.files[index], self._sizes[index]
        kind = kind_of(path)
        if kind == "lines":
            for place in (0, size // 2, size * 7 // 8):
                some = sources.line_items(index, path, 0, place, size, block_bytes=1 << 14)
                yield from itertools.islice(some, 1)
        elif kind == "packed lines":
            yield from itertools.islice(sources.stream_items(index, path, 0, 1 << 14), 1)
        elif kind == "parquet":
            yield from tables.sample_items(index, path, self._keys)
        elif kind == "text":
            yield from sources.text_items(index, path, 0)
        else:
            yield from itertools.islice(tables.arrow_items(index, path, 0, self._keys), 1)

    def lines_before(self, file: int) -> int:
        low = self._low - self._begins[file]
        if low <= 0:
            return 0
        path = self.files[file]
        if kind_of(path) == "parquet":
            return tables.rows_before(path, low)
        return sources.lines_before(path, low)


class HubInputs:
    """A dataset of Hugging Face, see `HubDataset`."""

    resumable = True

    def __init__(
        self, dataset: HubDataset, keys: Sequence[str], shard: int = 0, shards: int = 1
    ) -> None:
        self._dataset = dataset
        self._keys, self._shard, self._shards = tuple(keys), shard, shards
        self._opened = dataset.open()
        self.names = [dataset.describe()]
        self.total_bytes = 0  # not known before everything was read

    def identity(self) -> list[Any]:
        fingerprint = getattr(self._opened, "_fingerprint", None)
        return [self._dataset.describe(), fingerprint, self._shard, self._shards]

    def items(self, position: Position) -> Iterator[Item]:
        return self._dataset.items(
            self._opened, position.offset, self._shard, self._shards, self._keys
        )

    def sample(self) -> list[str]:
        return list(
            _clip(itertools.islice(self.items(Position()), 1), self._keys, _SAMPLE_CHARACTERS)
        )

    def lines_before(self, file: int) -> int:
        if hasattr(self._opened, "__len__"):
            return len(self._opened) * self._shard // self._shards
        return 0


def _clip(items: Iterator[Item], keys: Sequence[str], budget: int) -> Iterator[str]:
    """Texts of some items, up to `budget` characters, none longer than `_SAMPLE_DOCUMENT`."""
    for item in items:
        for text in itertools.chain.from_iterable(item.payload.read(keys).columns):
            if budget <= 0:
                return
            clipped = text[: min(budget, _SAMPLE_DOCUMENT)]
            budget -= len(clipped)
            yield clipped
