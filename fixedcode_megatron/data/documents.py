"""From JSON lines, text files and table rows to the texts under the wanted keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Rejected:
    """What is no document.

    Attributes
    ----------
    line
        Number of the line (or row) within what was read, from 1.
    kind
        "missing", "null", "non-string", "malformed" or "blank".
    reason
        For people.
    """

    line: int
    kind: str
    reason: str


@dataclass
class Records:
    """Documents of one stretch of input.

    Attributes
    ----------
    columns
        For each key the texts of all documents, [keys][documents].
    rejected
        Lines that are no documents.
    lines
        Number of lines or rows that were read.
    """

    columns: list[list[str]]
    rejected: list[Rejected] = field(default_factory=list)
    lines: int = 0

    def add(self, row: list[str] | Rejected) -> None:
        """Take a document, or a reason why there is none."""
        if isinstance(row, Rejected):
            self.rejected.append(row)
            return
        for column, text in zip(self.columns, row, strict=True):
            column.append(text)


def parse_lines(data: bytes, keys: Sequence[str]) -> Records:
    """Read whole JSON lines; only the last one may lack its newline."""
    lines = _split(data)
    try:  # the usual case at the speed of the parser
        parsed = [orjson.loads(line) for line in lines]
        columns = [[record[key] for record in parsed] for key in keys]
        if all(type(text) is str for column in columns for text in column):
            return Records(columns, lines=len(lines))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        pass
    records = Records([[] for _ in keys], lines=len(lines))
    for number, line in enumerate(lines, start=1):
        records.add(_parse_line(bytes(line), number, keys))
    return records


def _split(data: bytes) -> list[memoryview]:
    """The lines of `data`, without their newlines and without copies."""
    view, lines, begin = memoryview(data), [], 0
    while (end := data.find(b"\n", begin)) >= 0:
        lines.append(view[begin:end])
        begin = end + 1
    if begin < len(data):
        lines.append(view[begin:])
    return lines


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
    return _texts_of(record, number, keys)


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


def _texts_of(record: dict[str, Any], number: int, keys: Sequence[str]) -> list[str] | Rejected:
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
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            return Rejected(number, "malformed", f"key {key!r} is not Unicode text ({error})")
        texts.append(value)
    return texts


def parse_rows(rows: Iterable[dict[str, Any]], keys: Sequence[str]) -> Records:
    """Read the rows of a table, each a dict."""
    records = Records([[] for _ in keys])
    for number, row in enumerate(rows, start=1):
        records.add(_texts_of(row, number, keys))
        records.lines = number
    return records


def read_text_file(path: Path, keys: Sequence[str]) -> list[str] | Rejected:
    """A whole file as one document; every key gets its text."""
    data = path.read_bytes()
    try:
        text = data.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        return Rejected(1, "malformed", f"not UTF-8 text ({error})")
    return [text for _ in keys]
