"""Cut inputs into items of work. The parent cuts, a worker reads: see `Item`.

Every kind of input has a cutter, a generator of items for one file from an offset on. What an
offset counts is the cutter's own affair: bytes of decompressed text, or rows of a table. An
interrupted run continues at the offset after the last item that was written.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fixedcode_megatron.data.documents import (
    BOM,
    Records,
    Rejected,
    parse_lines,
    read_text_file,
)
from fixedcode_megatron.data.streams import chunks
from fixedcode_megatron.errors import UserError

BLOCK_BYTES = 2 << 20


class Payload(Protocol):
    """What travels to a worker."""

    def read(self, keys: Sequence[str]) -> Records:
        """The documents, read in the worker."""
        ...


@dataclass(frozen=True)
class Item:
    """A piece of work.

    Attributes
    ----------
    file
        Index of the file in the list of inputs.
    path
        The file, for messages.
    payload
        Gives the documents.
    end
        Offset in the file after this item.
    read_bytes
        Bytes on disk that this item stands for, for progress.
    """

    file: int
    path: str
    payload: Payload
    end: int
    read_bytes: int


def rejection(item: Item, lines_before: int, rejected: Rejected) -> UserError:
    """The error for a line that is no document."""
    return UserError(
        f"{item.path}:{lines_before + rejected.line}: {rejected.reason} "
        "(--on-error skip leaves such lines out and counts them)"
    )


class JsonLines(ABC):
    """Whole JSON lines."""

    @abstractmethod
    def load(self) -> bytes:
        """The lines, without the byte order mark that a file may begin with."""

    def read(self, keys: Sequence[str]) -> Records:
        return parse_lines(self.load(), keys)


@dataclass(frozen=True)
class LineRange(JsonLines):
    """Whole lines of a plain file, by place: the worker reads them itself."""

    path: str
    offset: int
    size: int

    def load(self) -> bytes:
        with open(self.path, "rb", buffering=0) as stream:
            data = os.pread(stream.fileno(), self.size, self.offset)
        if len(data) != self.size:
            raise UserError(f"{self.path} became shorter while it was read: run again")
        return data if self.offset else data.removeprefix(BOM)


@dataclass(frozen=True)
class Lines(JsonLines):
    """Whole lines, by value."""

    data: bytes
    first: bool

    def load(self) -> bytes:
        return self.data.removeprefix(BOM) if self.first else self.data


@dataclass(frozen=True)
class TextFile:
    """A file that is one document."""

    path: str

    def read(self, keys: Sequence[str]) -> Records:
        records = Records([[] for _ in keys], lines=1)
        records.add(read_text_file(Path(self.path), keys))
        return records


def line_items(
    file: int, path: Path, start: int, low: int, high: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[Item]:
    """Lines of a plain file that begin in the bytes `low` to `high`, from `start` on."""
    try:
        size = path.stat().st_size
        with open(path, "rb", buffering=0) as stream:
            begin = max(start, _line_start(stream.fileno(), low, size))
            last = _line_start(stream.fileno(), min(high, size), size)
            while begin < last:
                end = min(last, _line_start(stream.fileno(), begin + block_bytes, size))
                yield Item(
                    file, str(path), LineRange(str(path), begin, end - begin), end, end - begin
                )
                begin = end
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def _line_start(descriptor: int, offset: int, size: int) -> int:
    """Where the first line begins that begins at `offset` or later."""
    if offset <= 0:
        return 0
    place = offset - 1  # a newline there means that a line begins at `offset`
    while place < size:
        data = os.pread(descriptor, 1 << 16, place)
        if not data:
            break
        found = data.find(b"\n")
        if found >= 0:
            return place + found + 1
        place += len(data)
    return size


def stream_items(
    file: int, path: Path, start: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[Item]:
    """Lines of a compressed file or a pipe, from byte `start` of its text on."""
    kept: list[bytes] = []
    held, offset, counted = 0, 0, 0
    at_disk = 0
    for data, at_disk in chunks(path):
        if offset + len(data) <= start:  # `start` begins a line
            offset += len(data)
            continue
        if offset < start:
            data, offset = data[start - offset :], start
        cut = data.rfind(b"\n") + 1
        if held + len(data) < block_bytes or cut == 0:
            kept.append(data)
            held += len(data)
            continue
        block = b"".join([*kept, data[:cut]])
        first = offset == 0
        offset += len(block)
        yield Item(file, str(path), Lines(block, first), offset, at_disk - counted)
        kept, held, counted = [data[cut:]], len(data) - cut, at_disk
    block = b"".join(kept)
    if block:
        payload = Lines(block, offset == 0)
        yield Item(file, str(path), payload, offset + len(block), at_disk - counted)


def text_items(file: int, path: Path, start: int) -> Iterator[Item]:
    """A text file: one item."""
    if start == 0:
        yield Item(file, str(path), TextFile(str(path)), 1, path.stat().st_size)


def lines_before(path: Path, low: int) -> int:
    """Number of lines of a plain file that begin before byte `low`."""
    with open(path, "rb", buffering=0) as stream:
        end = _line_start(stream.fileno(), low, path.stat().st_size)
        return sum(
            os.pread(stream.fileno(), min(BLOCK_BYTES, end - place), place).count(b"\n")
            for place in range(0, end, BLOCK_BYTES)
        )
