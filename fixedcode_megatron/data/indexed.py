"""Read Megatron's indexed datasets (layout: `index_format`); the writer is re-exported."""

from __future__ import annotations

import os

import numpy as np

from fixedcode_megatron.data.index_format import (
    HEADER,
    bin_path,
    dtype_for_vocab,
    idx_path,
    read_header,
    summary_path,
)
from fixedcode_megatron.data.indexed_writer import IndexedDatasetWriter
from fixedcode_megatron.errors import UserError

__all__ = [
    "IndexedDatasetReader",
    "IndexedDatasetWriter",
    "bin_path",
    "dtype_for_vocab",
    "idx_path",
    "read_header",
    "summary_path",
]


class IndexedDatasetReader:
    """Read an indexed dataset through memory maps. `reader[i]` is sequence i as a numpy array.

    Attributes
    ----------
    dtype
        Type of the ids, always taken from the file.
    sequence_lengths, sequence_pointers, document_indices
        int32 [S], int64 [S] in bytes, int64 [documents + 1].
    sequence_modes
        int8 [S] of a multimodal dataset, else None.
    tokens
        All ids of `.bin`.

    Raises
    ------
    UserError
        If a file is missing, has no or a foreign header, or the two do not belong together.
    """

    def __init__(self, prefix: str | os.PathLike) -> None:
        self.prefix = os.fspath(prefix)
        index_file, token_file = idx_path(prefix), bin_path(prefix)
        for path in (index_file, token_file):
            if not path.is_file():
                raise UserError(f"{path} does not exist: a dataset is a .bin and an .idx file")
        self.dtype, sequences, ends, multimodal = read_header(index_file)
        raw = np.memmap(index_file, dtype=np.uint8, mode="r")
        bounds = np.cumsum([HEADER.size, 4 * sequences, 8 * sequences, 8 * ends]).tolist()
        self.sequence_lengths = raw[bounds[0] : bounds[1]].view("<i4")
        self.sequence_pointers = raw[bounds[1] : bounds[2]].view("<i8")
        self.document_indices = raw[bounds[2] : bounds[3]].view("<i8")
        self.sequence_modes = raw[bounds[3] :].view(np.int8) if multimodal else None
        stored = token_file.stat().st_size
        needed = 0
        if sequences:
            last = int(self.sequence_lengths[-1]) * self.dtype.itemsize
            needed = int(self.sequence_pointers[-1]) + last
        if stored != needed:
            raise UserError(
                f"{token_file} holds {stored} bytes, {index_file.name} describes {needed}: the "
                "files do not belong together or one is cut short; preprocess again"
            )
        self.tokens = (
            np.memmap(token_file, dtype=self.dtype, mode="r") if stored else np.empty(0, self.dtype)
        )

    def __len__(self) -> int:
        return len(self.sequence_lengths)

    @property
    def num_documents(self) -> int:
        """Documents, those without a sequence included."""
        return len(self.document_indices) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        begin = int(self.sequence_pointers[index]) // self.dtype.itemsize
        return self.tokens[begin : begin + int(self.sequence_lengths[index])]
