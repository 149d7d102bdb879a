"""Write Megatron's indexed datasets (layout: `index_format`)."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from types import TracebackType

import numpy as np

from fixedcode_megatron.data.files import flush_to_disk
from fixedcode_megatron.data.index_format import MAX_SEQUENCE, pack_header, sequence_pointers
from fixedcode_megatron.data.partial_pair import PartialPair
from fixedcode_megatron.errors import UserError

_CHUNK = 1 << 16


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
    multimodal
        Keep a mode (int8) for each sequence, as megatron-core's multimodal datasets do.
    keep
        Keep what an interrupted run left in the temporary `.bin`, see `resumable`.

    Raises
    ------
    UserError
        If the dataset exists and `overwrite` is false, or another process is writing it.
    """

    def __init__(
        self,
        prefix: str | os.PathLike,
        dtype: type[np.integer],
        *,
        overwrite: bool = False,
        multimodal: bool = False,
        keep: bool = False,
    ) -> None:
        self.prefix = os.fspath(prefix)
        self.dtype = np.dtype(dtype)
        self.lengths = array("i")
        self.document_ends = array("q", [0])
        self.modes = array("b") if multimodal else None
        self.max_token_id = -1
        self.num_tokens = 0
        self._pair = PartialPair(prefix, overwrite=overwrite, keep=keep)
        self._prepared = False

    def add_document(
        self,
        ids: np.ndarray | Sequence[int],
        lengths: Sequence[int] | None = None,
        modes: Sequence[int] | None = None,
    ) -> None:
        """Append one document.

        Parameters
        ----------
        ids
            Token ids of the whole document, [n].
        lengths
            Lengths of its sequences; they must add up to n. Default: one sequence, or none if
            the document is empty.
        modes
            Mode of each sequence of a multimodal dataset. Default: 0 for all.
        """
        ids = np.asarray(ids)
        if lengths is None:
            lengths = [len(ids)] if len(ids) else []
        self.add_block(ids, np.asarray(lengths, np.int64), np.array([len(lengths)]), modes)

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
        filled = lengths > 0
        self.add_block(ids, lengths[filled], filled)

    def add_block(
        self,
        ids: np.ndarray,
        lengths: np.ndarray,
        sequences: np.ndarray,
        modes: np.ndarray | Sequence[int] | None = None,
    ) -> None:
        """Append many documents of any number of sequences.

        Parameters
        ----------
        ids
            All their ids, [sum(lengths)].
        lengths
            Number of ids of each sequence, int64 [sum(sequences)].
        sequences
            Number of sequences of each document, int [documents].
        modes
            Mode of each sequence; default 0. Only for a multimodal dataset.

        Raises
        ------
        ValueError
            If the counts do not fit together.
        UserError
            If an id does not fit into the type, or a sequence is longer than 2^31 - 1.
        """
        total = int(lengths.sum(dtype=np.int64))
        if total != len(ids):
            raise ValueError(f"sequence lengths add up to {total}, but {len(ids)} ids were given")
        if len(lengths) != int(sequences.sum()):
            raise ValueError(f"{len(lengths)} lengths for {int(sequences.sum())} sequences")
        self._check_lengths(lengths)
        if self.modes is None and modes is not None:
            raise ValueError("modes are for a multimodal dataset")
        if modes is not None and len(modes) != len(lengths):
            raise ValueError(f"{len(modes)} modes for {len(lengths)} sequences")
        self._write_ids(ids)
        first = len(self.lengths)
        self.lengths.frombytes(lengths.astype(np.int32).tobytes())
        ends = first + np.cumsum(sequences, dtype=np.int64)
        self.document_ends.frombytes(ends.tobytes())
        if self.modes is not None:
            filled = np.zeros(len(lengths), np.int8) if modes is None else np.asarray(modes)
            self.modes.frombytes(filled.astype(np.int8).tobytes())

    def _check_lengths(self, lengths: np.ndarray) -> None:
        longest = int(lengths.max()) if len(lengths) else 0
        if longest > MAX_SEQUENCE:
            raise UserError(
                f"a document of {longest} ids is longer than the format allows ({MAX_SEQUENCE} "
                "ids in a sequence): cut it into several documents"
            )

    def _write_ids(self, ids: np.ndarray) -> None:
        if len(ids) == 0:
            return
        limits = np.iinfo(self.dtype)
        low = 0 if np.issubdtype(ids.dtype, np.unsignedinteger) else int(ids.min())
        high = int(ids.max())
        if low < 0 or high > limits.max:
            raise UserError(
                f"token id {low if low < 0 else high} does not fit into {self.dtype.name} "
                f"(0 to {limits.max}): write this dataset with --dtype int32"
            )
        self.max_token_id = max(self.max_token_id, high)
        self.num_tokens += len(ids)
        self._pair.write_tokens(np.ascontiguousarray(ids, self.dtype).data)

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
        self._pair.finish_tokens(self.num_tokens * self.dtype.itemsize)
        self._write_index()
        self._prepared = True

    def _write_index(self) -> None:
        lengths = np.frombuffer(self.lengths, dtype=np.int32)
        assert int(lengths.sum(dtype=np.int64)) == self.num_tokens
        with self._pair.open_index() as stream:
            stream.write(pack_header(self.dtype, len(lengths), len(self.document_ends)))
            stream.write(lengths.astype("<i4", copy=False).data)
            offset = 0  # in bytes; chunks keep the extra memory constant
            for start in range(0, len(lengths), _CHUNK):
                chunk = lengths[start : start + _CHUNK]
                begins = sequence_pointers(chunk, self.dtype.itemsize, offset)
                stream.write(begins.astype("<i8", copy=False).data)
                offset += int(chunk.sum(dtype=np.int64)) * self.dtype.itemsize
            ends = np.frombuffer(self.document_ends, dtype=np.int64)
            stream.write(ends.astype("<i8", copy=False).data)
            if self.modes is not None:
                stream.write(self.modes.tobytes())
            flush_to_disk(stream)

    def commit(self) -> None:
        """Give both files their final names, `.idx` last: its presence means the pair is whole."""
        if not self._prepared:
            self.prepare()
        self._pair.commit()

    def abort(self) -> None:
        """Remove the temporary files. Does nothing after `commit()`."""
        self._pair.abort()

    def __enter__(self) -> IndexedDatasetWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()
