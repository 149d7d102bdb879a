"""The layout of Megatron's indexed datasets: a `.bin` of token ids and an `.idx` that cuts it up.

Layout of `.idx`, all little-endian:

| bytes | what |
|---|---|
| 9 | the mark `MMIDIDX` and two zero bytes |
| 8 | version, unsigned, 1 |
| 1 | type of the ids in `.bin`: 8 is uint16, 4 int32 (1, 2, 3, 5: uint8, int8, int16, int64) |
| 8 | number of sequences S, unsigned |
| 8 | number of document ends D, unsigned: documents + 1 |
| 4 S | length of each sequence in ids, int32 |
| 8 S | where each sequence begins in `.bin`, in bytes, int64 |
| 8 D | for each document the index of its first sequence, then S: int64, starts with 0 |
| S | multimodal datasets only: the mode of each sequence, int8 (0 is text) |

`.bin` is the sequences' ids one after the other, without separators. We write one sequence per
document; a document may have several (sentences) or none. Nothing in the header says whether modes
follow: the file's size does.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fixedcode_megatron.errors import UserError

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPES: dict[int, type[np.integer]] = {
    1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16,
}  # fmt: skip
CODES = {dtype: code for code, dtype in DTYPES.items()}
MAX_SEQUENCE = np.iinfo(np.int32).max
"""Ids in one sequence; lengths are int32 in the file."""
MAX_SEQUENCES = np.iinfo(np.int32).max
"""Sequences in one dataset that training can use; megatron-core numbers them in int32."""


class IndexHeader(NamedTuple):
    """What the head of an `.idx` says; `multimodal` follows from the file's size."""

    dtype: np.dtype
    sequences: int
    ends: int
    multimodal: bool


def dtype_for_vocab(vocab_size: int) -> type[np.integer]:
    """uint16 where every id of the vocabulary fits into it (V <= 65,536), else int32."""
    return np.uint16 if vocab_size <= 1 << 16 else np.int32


def bin_path(prefix: str | os.PathLike) -> Path:
    """The token file of a prefix."""
    return Path(f"{os.fspath(prefix)}.bin")


def idx_path(prefix: str | os.PathLike) -> Path:
    """The index file of a prefix."""
    return Path(f"{os.fspath(prefix)}.idx")


def summary_path(prefix: str | os.PathLike) -> Path:
    """The JSON summary that our tools write beside a dataset."""
    return Path(f"{os.fspath(prefix)}.json")


def pack_header(dtype: np.dtype, sequences: int, ends: int) -> bytes:
    """The 34 bytes at the head of an `.idx`."""
    return HEADER.pack(MAGIC, 1, CODES[dtype.type], sequences, ends)


def sequence_pointers(lengths: np.ndarray, itemsize: int, first: int = 0) -> np.ndarray:
    """Where sequences begin in `.bin`: int64 bytes [S], whatever the type of `lengths`.

    Parameters
    ----------
    lengths
        Lengths in ids, [S].
    itemsize
        Bytes of one id.
    first
        Where the first one begins, in bytes.
    """
    begins = np.empty(len(lengths), np.int64)
    if len(lengths):
        begins[0] = 0
        np.cumsum(lengths[:-1], dtype=np.int64, out=begins[1:])
    begins *= itemsize
    begins += first
    return begins


def read_header(path: Path) -> IndexHeader:
    """Type of the ids, number of sequences and of document ends, and modes or not, of an `.idx`.

    Raises
    ------
    UserError
        If it is no `.idx` of version 1, or its size is not what its header asks for.
    """
    with open(path, "rb") as stream:
        head = stream.read(HEADER.size)
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        raise UserError(f"{path} is not a Megatron index (.idx): its first bytes are {head[:9]!r}")
    _, version, code, sequences, ends = HEADER.unpack(head)
    if version != 1 or code not in DTYPES:
        raise UserError(f"{path}: version {version}, type code {code} of the index are unknown")
    found, needed = path.stat().st_size, HEADER.size + 12 * sequences + 8 * ends
    if found not in (needed, needed + sequences):
        raise UserError(
            f"{path} holds {found} bytes, its header asks for {needed}, or {needed + sequences} "
            "with a mode for each sequence: it is damaged; make the dataset again"
        )
    return IndexHeader(np.dtype(DTYPES[code]), sequences, ends, found > needed)
