"""An indexed dataset whose writing can be interrupted and taken up again."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from fixedcode_megatron.data.files import flush_to_disk, holds
from fixedcode_megatron.data.indexed_writer import IndexedDatasetWriter


class ResumableWriter(IndexedDatasetWriter):
    """A writer with checkpoints.

    Beside the temporary `.bin` two files take, at each checkpoint, what came since the last one:
    `{prefix}.lengths.partial` (int32 per sequence) and `{prefix}.documents.partial` (int64 per
    document end). What a checkpoint returned says how much of each file counts; the rest is cut
    off when writing is taken up again.

    Parameters
    ----------
    prefix, dtype, overwrite
        As in `IndexedDatasetWriter`.
    """

    def __init__(
        self, prefix: str | os.PathLike, dtype: type[np.integer], *, overwrite: bool = False
    ) -> None:
        super().__init__(prefix, dtype, overwrite=overwrite, keep=True)
        self._lengths_path = Path(f"{self.prefix}.lengths.partial")
        self._ends_path = Path(f"{self.prefix}.documents.partial")
        self._suspended = False
        self._saved = (0, 1)  # sequences and document ends at the last checkpoint

    def checkpoint(self) -> dict[str, int]:
        """Bring everything so far to disk; returns what `restore` needs."""
        flush_to_disk(self._pair.tokens)
        _save(self._lengths_path, self.lengths, self._saved[0], 0)
        _save(self._ends_path, self.document_ends, self._saved[1], 1)
        self._saved = (len(self.lengths), len(self.document_ends))
        return {
            "tokens": self.num_tokens,
            "sequences": len(self.lengths),
            "documents": self.num_documents,
            "max_token_id": self.max_token_id,
        }

    def can_restore(self, state: dict[str, Any]) -> bool:
        """Whether the files still hold what the checkpoint counted."""
        return (
            holds(Path(f"{self.prefix}.bin.partial"), state["tokens"] * self.dtype.itemsize)
            and holds(self._lengths_path, state["sequences"] * 4)
            and holds(self._ends_path, state["documents"] * 8)
        )

    def restore(self, state: dict[str, Any] | None) -> None:
        """Take up writing after a checkpoint, or begin with nothing if `state` is None."""
        if state is None:
            self._pair.tokens.truncate(0)
            self._remove_side_files()
            return
        self._pair.tokens.truncate(state["tokens"] * self.dtype.itemsize)
        self.lengths = array("i")
        with open(self._lengths_path, "rb") as stream:
            self.lengths.fromfile(stream, state["sequences"])
        self.document_ends = array("q", [0])
        with open(self._ends_path, "rb") as stream:
            self.document_ends.fromfile(stream, state["documents"])
        self.num_tokens = state["tokens"]
        self.max_token_id = state["max_token_id"]
        self._saved = (len(self.lengths), len(self.document_ends))

    def suspend(self) -> None:
        """End without removing anything."""
        self._pair.suspend()
        self._suspended = True

    def commit(self) -> None:
        super().commit()
        self._remove_side_files()

    def abort(self) -> None:
        if not self._suspended:
            self._remove_side_files()
        super().abort()

    def _remove_side_files(self) -> None:
        for path in (self._lengths_path, self._ends_path):
            path.unlink(missing_ok=True)


def _save(path: Path, values: array, saved: int, left_out: int) -> None:
    """Append `values` from index `saved` on; the first `left_out` values are not in the file."""
    with open(path, "r+b" if saved > left_out else "wb") as stream:
        stream.seek((saved - left_out) * values.itemsize)
        stream.write(memoryview(values)[saved:])
        stream.truncate()
        flush_to_disk(stream)
