"""Parquet and Arrow files, and the rows of Hugging Face datasets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixedcode_megatron.data.documents import Records, parse_rows
from fixedcode_megatron.data.sources import Item
from fixedcode_megatron.errors import UserError

_GROUP_BYTES = 64 << 20  # a larger row group is read piece by piece, by the parent
_ROWS = 512


@dataclass(frozen=True)
class RowGroup:
    """One row group of a parquet file, by place."""

    path: str
    group: int

    def read(self, keys: Sequence[str]) -> Records:
        file = _open_parquet(Path(self.path))
        return parse_rows(
            _rows(file.read_row_group(self.group, columns=_present(file, keys))), keys
        )


@dataclass(frozen=True)
class Rows:
    """Rows by value."""

    rows: list[dict[str, Any]]

    def read(self, keys: Sequence[str]) -> Records:
        return parse_rows(self.rows, keys)


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise UserError(
            "parquet and arrow files need the pyarrow library: pip install pyarrow"
        ) from error
    return pyarrow


def _open_parquet(path: Path) -> Any:
    arrow = _arrow()
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path, memory_map=True, pre_buffer=False)
    except (arrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: cannot be read as parquet ({error})") from error


def _present(file: Any, keys: Sequence[str]) -> list[str]:
    names = file.schema_arrow.names
    return [key for key in keys if key in names]


def _rows(table: Any) -> list[dict[str, Any]]:
    """Rows as dicts; a table without any wanted column still has its number of rows."""
    return table.to_pylist() if table.num_columns else [{}] * table.num_rows


def parquet_items(
    file: int, path: Path, start: int, low: int, high: int, keys: Sequence[str]
) -> Iterator[Item]:
    """Row groups whose share of the file begins in the bytes `low` to `high`; offsets are rows."""
    parquet = _open_parquet(path)
    metadata = parquet.metadata
    size = path.stat().st_size
    first = 0
    for group in range(metadata.num_row_groups):
        about = metadata.row_group(group)
        begin = size * group // metadata.num_row_groups
        end = size * (group + 1) // metadata.num_row_groups
        last = first + about.num_rows
        if low <= begin < high and start < last:
            if about.total_byte_size <= _GROUP_BYTES and start <= first:
                yield Item(file, str(path), RowGroup(str(path), group), last, end - begin)
            else:
                yield from _streamed(file, path, parquet, group, first, start, end - begin, keys)
        first = last


def _streamed(
    file: int,
    path: Path,
    parquet: Any,
    group: int,
    first: int,
    start: int,
    group_bytes: int,
    keys: Sequence[str],
    rows_at_once: int = _ROWS,
) -> Iterator[Item]:
    """A row group in pieces of a few hundred rows."""
    rows = max(parquet.metadata.row_group(group).num_rows, 1)
    columns = _present(parquet, keys)
    for batch in parquet.iter_batches(rows_at_once, row_groups=[group], columns=columns):
        end = first + batch.num_rows
        if end > start:
            skip = max(0, start - first)
            payload = Rows(_rows(batch.slice(skip)))
            yield Item(file, str(path), payload, end, group_bytes * batch.num_rows // rows)
        first = end


def arrow_items(file: int, path: Path, start: int, keys: Sequence[str]) -> Iterator[Item]:
    """Record batches of an Arrow file or stream; offsets are rows."""
    arrow = _arrow()
    from pyarrow import ipc

    size = path.stat().st_size
    first, counted = 0, 0
    try:
        with arrow.memory_map(str(path)) as source:
            for batch in _arrow_batches(ipc, arrow, source):
                for begin in range(0, batch.num_rows, _ROWS):
                    piece = batch.slice(begin, _ROWS)
                    last = first + piece.num_rows
                    if last > start:
                        names = [key for key in keys if key in piece.schema.names]
                        rows = _rows(piece.slice(max(0, start - first)).select(names))
                        read = min(source.tell(), size) - counted
                        counted += max(read, 0)
                        yield Item(file, str(path), Rows(rows), last, max(read, 0))
                    first = last
    except (arrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: cannot be read as an Arrow file or stream ({error})") from error


def _arrow_batches(ipc: Any, arrow: Any, source: Any) -> Iterator[Any]:
    if source.read(6) == b"ARROW1":
        reader = ipc.open_file(source)
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)
        return
    source.seek(0)
    yield from ipc.open_stream(source)


def sample_items(file: int, path: Path, keys: Sequence[str]) -> Iterator[Item]:
    """The first rows of some row groups, few at a time."""
    parquet = _open_parquet(path)
    groups = parquet.metadata.num_row_groups
    for group in sorted({0, groups // 2, groups - 1} if groups else ()):
        some = _streamed(file, path, parquet, group, 0, 0, 0, keys, rows_at_once=16)
        yield from itertools.islice(some, 1)


def rows_before(path: Path, low: int) -> int:
    """Rows of the groups whose share of a parquet file begins before byte `low`."""
    metadata = _open_parquet(path).metadata
    groups, size = metadata.num_row_groups, path.stat().st_size
    return sum(metadata.row_group(g).num_rows for g in range(groups) if size * g // groups < low)
