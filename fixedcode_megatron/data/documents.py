"""Read documents from JSON lines, plain or gzip, in blocks of whole lines.

A block travels to a worker as bytes; the worker parses it. Memory is a block, whatever the size of
the file (or one line, where a line is longer than a block).
"""

from __future__ import annotations

import glob
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import orjson

from fixedcode_megatron.errors import UserError

SUFFIXES = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Block:
    """Whole lines of one file.

    Attributes
    ----------
    path
        The file.
    first_line
        Number of the first line, from 1.
    data
        The lines; only the last one of a file may lack its newline.
    read_bytes
        Bytes of the file on disk that were read for this block, for progress.
    """

    path: str
    first_line: int
    data: bytes
    read_bytes: int


@dataclass(frozen=True)
class Rejected:
    """A line that is no document: `kind` is missing, null, non-string, malformed or blank."""

    line: int
    kind: str
    reason: str


def expand_inputs(patterns: Sequence[str]) -> list[Path]:
    """Files named by paths, globs and folders, in the order given.

    The files of one glob or folder come in natural order: `part_2` before `part_10`.

    Raises
    ------
    UserError
        If a pattern matches nothing, or a file is of a kind that cannot be read.
    """
    found: list[Path] = []
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            matches = [p for p in path.iterdir() if _is_documents(p)]
        elif path.exists():
            matches = [path]
        else:
            matches = [Path(p) for p in glob.glob(pattern, recursive=True) if Path(p).is_file()]
        if not matches:
            raise UserError(f"--input {pattern}: no such file, and no document file matches")
        found.extend(sorted(matches, key=_natural))
    for path in found:
        if not path.name.endswith(SUFFIXES):
            raise UserError(
                f"--input {path}: cannot read this kind; known are {', '.join(SUFFIXES)}"
            )
    return found


def _is_documents(path: Path) -> bool:
    """A file of a known kind that is not the summary of an earlier preprocessing."""
    summary = path.suffix == ".json" and path.with_suffix(".idx").exists()
    return path.is_file() and path.name.endswith(SUFFIXES) and not summary


def _natural(path: Path) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", str(path))
    return [(0, int(part), part) if part.isdigit() else (1, 0, part) for part in parts]


def read_blocks(paths: Iterable[Path], block_bytes: int = 1 << 20) -> Iterator[Block]:
    """Yield every file's lines in blocks of about `block_bytes` of text.

    Raises
    ------
    UserError
        If a file cannot be opened, or a compressed one is damaged or cut short.
    """
    for path in paths:
        try:
            yield from _blocks_of_file(path, block_bytes)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(
                f"{path}: the compressed file is damaged or cut short ({error})"
            ) from error
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def _blocks_of_file(path: Path, block_bytes: int) -> Iterator[Block]:
    with open(path, "rb") as raw:
        packed = path.name.endswith(".gz")
        stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        line, before, first = 1, 0, True
        while True:
            data = stream.read(block_bytes)
            if data and not data.endswith(b"\n"):
                data += stream.readline()
            if not data:
                return
            position = raw.tell() if packed else before + len(data)  # a pipe cannot tell
            lines = data.count(b"\n")
            if first and data.startswith(_BOM):
                data = data[len(_BOM) :]
            yield Block(str(path), line, data, position - before)
            line, before, first = line + lines, position, False


def parse_block(block: Block, keys: Sequence[str]) -> Iterator[list[str] | Rejected]:
    """For each line of a block the texts under `keys`, in their order, or why there are none."""
    lines = block.data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, start=block.first_line):
        yield _parse_line(line, number, keys)


def _parse_line(line: bytes, number: int, keys: Sequence[str]) -> list[str] | Rejected:
    if not line.strip():
        return Rejected(number, "blank", "the line is blank")
    try:
        record = _load(line)
    except (ValueError, RecursionError) as error:
        return Rejected(number, "malformed", f"not one JSON object ({error})")
    if not isinstance(record, dict):
        kind = type(record).__name__
        return Rejected(number, "malformed", f"a JSON object is needed, found {kind}")
    texts = []
    for key in keys:
        if key not in record:
            have = ", ".join(map(repr, list(record)[:8])) or "none"
            return Rejected(number, "missing", f"no key {key!r} (its keys: {have})")
        value = record[key]
        if value is None:
            return Rejected(number, "null", f"key {key!r} is null")
        if not isinstance(value, str):
            return Rejected(number, "non-string", f"key {key!r} holds {value!r:.40}, not a string")
        texts.append(value)
    return texts


def _load(line: bytes) -> object:
    """Parse a line; what only the standard library takes, such as NaN in a score, is taken too."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        try:
            record = json.loads(line.decode("utf-8"))
            json.dumps(record, ensure_ascii=False).encode("utf-8")  # no half surrogate pair
        except (ValueError, RecursionError):
            raise error from None
        return record


def read_texts(paths: Iterable[Path], keys: Sequence[str], *, stop: bool) -> Iterator[str]:
    """Yield the texts of all documents, one after the other.

    Raises
    ------
    UserError
        With file and line at the first line that is no document, if `stop` is true; otherwise
        such lines are left out.
    """
    for block in read_blocks(paths):
        for record in parse_block(block, keys):
            if not isinstance(record, Rejected):
                yield from record
            elif stop and record.kind != "blank":
                raise rejection(block, record)


def rejection(block: Block, rejected: Rejected) -> UserError:
    """The error for a line that is no document."""
    return UserError(
        f"{block.path}:{rejected.line}: {rejected.reason} "
        "(--on-error skip leaves such lines out and counts them)"
    )
