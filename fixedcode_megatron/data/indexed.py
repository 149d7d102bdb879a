"""Megatron's indexed datasets: a `.bin` of token ids and an `.idx` that says where each one ends.

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

`.bin` is the sequences' ids one after the other, without separators. We write one sequence per
document; a document may have several (sentences) or none.
"""

from __future__ import annotations

import contextlib
import os
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from fixedcode_megatron.data.files import flush_to_disk, fsync_folder, open_claimed
from fixedcode_megatron.errors import UserError

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPES: dict[int, type[np.integer]] = {
    1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16,
}  # fmt: skip
CODES = {dtype: code for code, dtype in DTYPES.items()}
_CHUNK = 1 << 20


def dtype_for_vocab(vocab_size: int) -> type[np.integer]:
    """uint16 where every id of the vocabulary fits into it (V <= 65,536), else int32."""
    return np.uint16 if vocab_size <= 1 << 16 else np.int32


def bin_path(prefix: str | os.PathLike) -> Path:
    """The token file of a prefix."""
    return Path(f"{os.fspath(prefix)}.bin")


def idx_path(prefix: str | os.PathLike) -> Path:
    """The index file of a prefix."""
    return Path(f"{os.fspath(prefix)}.idx")


class IndexedDatasetWriter:
    """Write `{prefix}.bin` and `{prefix}.idx`; neither name exists before both are whole.

    While writing, the files are called `{prefix}.bin.partial` and `.idx.partial`. Memory: 12 bytes
    per document. Leaving the `with` block without `commit()` removes everything.

    Parameters
    ----------
    prefix
        Path without extension; its folder is created.
    dtype
        numpy.uint16 or numpy.int32, see `dtype_for_vocab`.
    overwrite
        Replace an existing dataset of this prefix at `commit()`.

    Raises
    ------
    UserError
        If the dataset exists and `overwrite` is false, or another process is writing it.
    """

    def __init__(
        self, prefix: str | os.PathLike, dtype: type[np.integer], *, overwrite: bool = False
    ) -> None:
        self.prefix = os.fspath(prefix)
        self.dtype = np.dtype(dtype)
        self.lengths = array("i")
        self.document_ends = array("q", [0])
        self.max_token_id = -1
        self.num_tokens = 0
        for path in (bin_path(prefix), idx_path(prefix)):
            if path.exists() and not overwrite:
                raise UserError(f"{path} exists: choose another --output-prefix or add --overwrite")
        self._bin_partial = Path(f"{self.prefix}.bin.partial")
        self._idx_partial = Path(f"{self.prefix}.idx.partial")
        self._bin_partial.parent.mkdir(parents=True, exist_ok=True)
        stream = open_claimed(self._bin_partial)
        if stream is None:
            raise UserError(f"another process is writing {self.prefix}.bin: wait for it or end it")
        self._stream = stream
        self._state = "open"

    def add_document(
        self, ids: np.ndarray | Sequence[int], lengths: Sequence[int] | None = None
    ) -> None:
        """Append one document.

        Parameters
        ----------
        ids
            Token ids of the whole document, [n].
        lengths
            Lengths of its sequences; they must add up to n. Default: one sequence, or none if
            the document is empty.
        """
        ids = np.asarray(ids)
        if lengths is None:
            lengths = [len(ids)] if len(ids) else []
        if sum(lengths) != len(ids):
            raise ValueError(
                f"sequence lengths add up to {sum(lengths)}, document has {len(ids)} ids"
            )
        self._write_ids(ids)
        self.lengths.extend(lengths)
        self.document_ends.append(len(self.lengths))

    def add_documents(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Append many documents of one sequence each (none where the length is 0).

        Parameters
        ----------
        ids
            All their ids, [sum(lengths)].
        lengths
            Number of ids of each document, int [documents].
        """
        lengths = np.asarray(lengths, dtype=np.int64)
        if int(lengths.sum()) != len(ids):
            raise ValueError(
                f"lengths add up to {int(lengths.sum())}, but {len(ids)} ids were given"
            )
        self._write_ids(ids)
        first = len(self.lengths)
        filled = lengths > 0
        self.lengths.frombytes(lengths[filled].astype(np.int32).tobytes())
        self.document_ends.frombytes((first + np.cumsum(filled, dtype=np.int64)).tobytes())

    def _write_ids(self, ids: np.ndarray) -> None:
        if len(ids) == 0:
            return
        limits = np.iinfo(self.dtype)
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high > limits.max:
            raise UserError(
                f"token id {low if low < 0 else high} does not fit into {self.dtype.name} "
                f"(0 to {limits.max}): write this dataset with --dtype int32"
            )
        self.max_token_id = max(self.max_token_id, high)
        self.num_tokens += len(ids)
        self._stream.write(ids.astype(self.dtype, copy=False).tobytes())

    @property
    def num_documents(self) -> int:
        """Documents so far, empty ones included."""
        return len(self.document_ends) - 1

    def prepare(self) -> None:
        """Bring both files to disk under their temporary names and check them.

        Raises
        ------
        UserError
            If no token was written: such a dataset cannot be opened.
        """
        if self.num_tokens == 0:
            raise UserError(
                f"no tokens written to {self.prefix}: every document was empty or skipped"
            )
        flush_to_disk(self._stream)
        expected = self.num_tokens * self.dtype.itemsize
        found = os.fstat(self._stream.fileno()).st_size
        if found != expected:
            raise OSError(f"{self._bin_partial} holds {found} bytes, its index says {expected}")
        self._write_index()
        self._state = "prepared"

    def _write_index(self) -> None:
        lengths = np.frombuffer(self.lengths, dtype=np.int32)
        assert int(lengths.sum(dtype=np.int64)) == self.num_tokens
        code = CODES[self.dtype.type]
        header = HEADER.pack(MAGIC, 1, code, len(lengths), len(self.document_ends))
        with open(self._idx_partial, "wb") as stream:
            stream.write(header)
            stream.write(lengths.astype("<i4", copy=False).data)
            offset = 0  # in ids; chunks keep the extra memory constant
            for start in range(0, len(lengths), _CHUNK):
                ends = np.cumsum(lengths[start : start + _CHUNK], dtype=np.int64) + offset
                begins = np.concatenate(([offset], ends[:-1])) * self.dtype.itemsize
                stream.write(begins.astype("<i8", copy=False).data)
                offset = int(ends[-1])
            stream.write(
                np.frombuffer(self.document_ends, dtype=np.int64).astype("<i8", copy=False).data
            )
            flush_to_disk(stream)

    def commit(self) -> None:
        """Give both files their final names, `.idx` last: its presence means the pair is whole."""
        if self._state == "open":
            self.prepare()
        idx_path(self.prefix).unlink(missing_ok=True)  # never an old index beside a new .bin
        os.replace(self._bin_partial, bin_path(self.prefix))
        os.replace(self._idx_partial, idx_path(self.prefix))
        fsync_folder(bin_path(self.prefix).parent)
        self._stream.close()
        self._state = "committed"

    def abort(self) -> None:
        """Remove the temporary files. Does nothing after `commit()`."""
        if self._state in ("committed", "aborted"):
            return
        for path in (self._bin_partial, self._idx_partial):
            path.unlink(missing_ok=True)
        self._state = "aborted"
        with contextlib.suppress(OSError):  # it flushes, and fails again where the disk is full
            self._stream.close()

    def __enter__(self) -> IndexedDatasetWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()


class IndexedDatasetReader:
    """Read an indexed dataset through memory maps. `reader[i]` is sequence i as a numpy array.

    Attributes
    ----------
    dtype
        Type of the ids, always taken from the file.
    sequence_lengths, sequence_pointers, document_indices
        int32 [S], int64 [S] in bytes, int64 [documents + 1].

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
        self.dtype, sequences, ends = read_header(index_file)
        raw = np.memmap(index_file, dtype=np.uint8, mode="r")
        begin = HEADER.size
        self.sequence_lengths = raw[begin : begin + 4 * sequences].view("<i4")
        begin += 4 * sequences
        self.sequence_pointers = raw[begin : begin + 8 * sequences].view("<i8")
        begin += 8 * sequences
        self.document_indices = raw[begin : begin + 8 * ends].view("<i8")
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


def read_header(path: Path) -> tuple[np.dtype, int, int]:
    """Type of the ids, number of sequences and number of document ends of an `.idx` file.

    Raises
    ------
    UserError
        If it is no `.idx` of version 1, or is shorter than its header says.
    """
    with open(path, "rb") as stream:
        head = stream.read(HEADER.size)
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        raise UserError(f"{path} is not a Megatron index (.idx): its first bytes are {head[:9]!r}")
    _, version, code, sequences, ends = HEADER.unpack(head)
    if version != 1 or code not in DTYPES:
        raise UserError(f"{path}: version {version}, type code {code} of the index are unknown")
    needed = HEADER.size + 12 * sequences + 8 * ends
    if path.stat().st_size < needed:
        raise UserError(f"{path} holds {path.stat().st_size} bytes, its header asks for {needed}")
    return np.dtype(DTYPES[code]), sequences, ends
