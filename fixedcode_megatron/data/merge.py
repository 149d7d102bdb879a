"""Merge indexed datasets in constant memory."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fixedcode_megatron.data.files import flush_to_disk
from fixedcode_megatron.data.index_format import (
    HEADER,
    IndexHeader,
    bin_path,
    idx_path,
    pack_header,
    read_header,
    sequence_pointers,
    summary_path,
)
from fixedcode_megatron.data.merge_checks import check_summaries
from fixedcode_megatron.data.partial_pair import PartialPair
from fixedcode_megatron.data.summary import common_facts, write_summary
from fixedcode_megatron.errors import UserError

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20  # elements in memory at a time


@dataclass(frozen=True)
class _Shard:
    prefix: str
    header: IndexHeader
    tokens: int


def merge(
    prefixes: Sequence[str],
    output_prefix: str,
    *,
    dtype: str = "same",
    overwrite: bool = False,
    mixed_tokenizers: bool = False,
    missing_shards: bool = False,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> dict[str, Any]:
    """Write the documents of all datasets, in this order, as one dataset.

    Parameters
    ----------
    prefixes
        Datasets without extension.
    dtype
        "same" refuses datasets of different types; "uint16" and "int32" convert.
    overwrite
        Replace an existing dataset at `output_prefix`.
    mixed_tokenizers
        Merge datasets although their summaries name different tokenizers.
    missing_shards
        Merge some shards of a preprocessing run although others are not among the inputs.
    on_bytes
        Called with the number of bytes of each block of tokens written.

    Returns
    -------
    dict
        The summary, as in `{output_prefix}.json`.

    Raises
    ------
    UserError
        If datasets do not go together, are damaged, or the disk has too little room. Then nothing
        is left at the output.
    """
    shards = [_inspect(prefix) for prefix in prefixes]
    kind = _common_dtype(shards, dtype)
    for shard in shards[1:]:
        if shard.header.multimodal != shards[0].header.multimodal:
            raise UserError(
                f"of {shards[0].prefix} and {shard.prefix} only one has modes (multimodal): they "
                "cannot be one dataset"
            )
    check_summaries(prefixes, mixed_tokenizers=mixed_tokenizers, missing_shards=missing_shards)
    tokens = sum(shard.tokens for shard in shards)
    if tokens == 0:
        raise UserError("all datasets are empty: there is nothing to merge")
    _refuse_full_disk(shards, output_prefix, tokens * kind.itemsize)
    pair = PartialPair(output_prefix, overwrite=overwrite)
    try:
        largest = -1
        for shard in shards:
            largest = max(largest, _copy_tokens(shard, kind, pair.tokens, on_bytes))
        pair.finish_tokens(tokens * kind.itemsize)
        with pair.open_index() as stream:
            _write_index(shards, kind, stream)
            flush_to_disk(stream)
        documents = sum(shard.header.ends - 1 for shard in shards)
        summary = {
            "documents": documents,
            "sequences": sum(shard.header.sequences for shard in shards),
            "tokens": tokens,
            "tokens_per_document": round(tokens / max(1, documents), 2),
            "max_token_id": largest,
            "dtype": kind.name,
            "bin_bytes": tokens * kind.itemsize,
            "multimodal": shards[0].header.multimodal,
            **common_facts(prefixes),
            "merged_from": [os.path.abspath(prefix) for prefix in prefixes],
        }
        summary_path(output_prefix).unlink(missing_ok=True)
        pair.commit()
    finally:
        pair.abort()
    write_summary(output_prefix, summary)
    return summary


def _inspect(prefix: str) -> _Shard:
    """Header of a dataset, its size checked against the sum of its lengths."""
    header = read_header(idx_path(prefix))
    shard = _Shard(prefix, header, 0)
    tokens = sum(int(part.sum(dtype=np.int64)) for part in _section(shard, "lengths"))
    found = bin_path(prefix).stat().st_size
    if found != tokens * header.dtype.itemsize:
        raise UserError(
            f"{bin_path(prefix)} holds {found} bytes, its index describes "
            f"{tokens * header.dtype.itemsize}: make this dataset again before merging it"
        )
    last = [int(part[-1]) for part in _section(shard, "ends")]
    if not last or last[-1] != header.sequences:
        raise UserError(f"{idx_path(prefix)}: its documents do not end at its last sequence")
    return _Shard(prefix, header, tokens)


def _section(shard: _Shard, name: str) -> Iterator[np.ndarray]:
    """Read one array of an `.idx` in chunks: "lengths", "ends" or "modes"."""
    sequences, ends = shard.header.sequences, shard.header.ends
    offset, count, code = {
        "lengths": (0, sequences, "<i4"),
        "ends": (12 * sequences, ends, "<i8"),
        "modes": (12 * sequences + 8 * ends, sequences, "i1"),
    }[name]
    kind = np.dtype(code)
    with open(idx_path(shard.prefix), "rb") as stream:
        stream.seek(HEADER.size + offset)
        while count:
            part = np.frombuffer(stream.read(min(count, _CHUNK) * kind.itemsize), kind)
            if not len(part):
                raise OSError(f"{idx_path(shard.prefix)} became shorter while it was read")
            count -= len(part)
            yield part


def _common_dtype(shards: Sequence[_Shard], wanted: str) -> np.dtype:
    if wanted != "same":
        return np.dtype(wanted)
    first = shards[0]
    for shard in shards[1:]:
        if shard.header.dtype != first.header.dtype:
            raise UserError(
                f"{first.prefix} is {first.header.dtype.name}, {shard.prefix} is "
                f"{shard.header.dtype.name}: were both made with one tokenizer? If so, merge them "
                "with --dtype int32"
            )
    return first.header.dtype


def _refuse_full_disk(shards: Sequence[_Shard], output_prefix: str, token_bytes: int) -> None:
    folder = Path(output_prefix).absolute().parent
    while not folder.exists():
        folder = folder.parent
    needed = token_bytes + sum(idx_path(shard.prefix).stat().st_size for shard in shards)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"--output-prefix {output_prefix}: the merged dataset takes {needed / 1e9:.1f} GB, the "
            f"disk has {free / 1e9:.1f} GB left"
        )


def _copy_tokens(
    shard: _Shard, kind: np.dtype, output: IO[bytes], on_bytes: Callable[[int], object]
) -> int:
    """Append a shard's ids, converted; returns the largest."""
    largest, smallest = -1, 0
    limit = np.iinfo(kind).max
    with open(bin_path(shard.prefix), "rb") as stream:
        while raw := stream.read(8 * _CHUNK):
            ids = np.frombuffer(raw, shard.header.dtype)
            largest, smallest = max(largest, int(ids.max())), min(smallest, int(ids.min()))
            if smallest < 0 or largest > limit:
                raise UserError(
                    f"{shard.prefix} holds token id {smallest if smallest < 0 else largest}, which "
                    f"does not fit into {kind.name} (0 to {limit})"
                )
            converted = ids.astype(kind, copy=False)
            output.write(converted.data)
            on_bytes(converted.nbytes)
    return largest


def _write_index(shards: Sequence[_Shard], kind: np.dtype, stream: IO[bytes]) -> None:
    """Array by array, each from all shards: nothing is kept."""
    sequences = sum(shard.header.sequences for shard in shards)
    documents = sum(shard.header.ends - 1 for shard in shards)
    stream.write(pack_header(kind, sequences, documents + 1))
    for shard in shards:
        for lengths in _section(shard, "lengths"):
            stream.write(lengths.data)
    offset = 0
    for shard in shards:
        for lengths in _section(shard, "lengths"):
            stream.write(sequence_pointers(lengths, kind.itemsize, offset).astype("<i8").data)
            offset += int(lengths.sum(dtype=np.int64)) * kind.itemsize
    first = 0
    stream.write(np.zeros(1, "<i8").data)
    for shard in shards:
        skip = 1  # a shard's leading 0 is the end of the one before
        for ends in _section(shard, "ends"):
            stream.write((ends[skip:] + first).astype("<i8").data)
            skip = 0
        first += shard.header.sequences
    if shards[0].header.multimodal:
        for shard in shards:
            for modes in _section(shard, "modes"):
                stream.write(modes.data)
