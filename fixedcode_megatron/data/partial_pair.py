"""A `.bin`/`.idx` pair that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO

from fixedcode_megatron.data.files import flush_to_disk, fsync_folder, open_claimed, start_writing
from fixedcode_megatron.data.index_format import bin_path, idx_path
from fixedcode_megatron.errors import UserError

_WRITE_BYTES = 32 << 20


class PartialPair:
    """`{prefix}.bin.partial` and `.idx.partial` until `commit()` gives them their names.

    Parameters
    ----------
    prefix
        Path without extension; its folder is created.
    overwrite
        Replace an existing dataset of this prefix at `commit()`.
    keep
        Keep what an interrupted run left in the token file, see `resumable`.

    Attributes
    ----------
    tokens
        The open token file; nobody else writes this prefix meanwhile.

    Raises
    ------
    UserError
        If the dataset exists and `overwrite` is false, or another process is writing it.
    """

    def __init__(self, prefix: str | os.PathLike, *, overwrite: bool, keep: bool = False) -> None:
        self.prefix = os.fspath(prefix)
        for path in (bin_path(prefix), idx_path(prefix)):
            if path.exists() and not overwrite:
                raise UserError(f"{path} exists: choose another --output-prefix or add --overwrite")
        self._bin = Path(f"{self.prefix}.bin.partial")
        self._idx = Path(f"{self.prefix}.idx.partial")
        self._bin.parent.mkdir(parents=True, exist_ok=True)
        stream = open_claimed(self._bin, keep=keep)
        if stream is None:
            raise UserError(f"another process is writing {self.prefix}.bin: wait for it or end it")
        self.tokens = stream
        self._unwritten = 0
        self._done = False

    def write_tokens(self, data: memoryview) -> None:
        """Append to the token file."""
        self.tokens.write(data)
        self._unwritten += data.nbytes
        if self._unwritten >= _WRITE_BYTES:
            start_writing(self.tokens, self.tokens.tell() - self._unwritten)
            self._unwritten = 0

    def finish_tokens(self, expected: int) -> None:
        """Bring the token file to disk and check that it holds `expected` bytes."""
        flush_to_disk(self.tokens)
        found = os.fstat(self.tokens.fileno()).st_size
        if found != expected:
            raise OSError(f"{self._bin} holds {found} bytes, its index says {expected}")

    def open_index(self) -> IO[bytes]:
        """The index file, from scratch."""
        return open(self._idx, "wb")

    def commit(self) -> None:
        """Give both files their final names, `.idx` last: its presence means the pair is whole."""
        idx_path(self.prefix).unlink(missing_ok=True)  # never an old index beside a new .bin
        os.replace(self._bin, bin_path(self.prefix))
        os.replace(self._idx, idx_path(self.prefix))
        fsync_folder(bin_path(self.prefix).parent)
        self.tokens.close()
        self._done = True

    def abort(self) -> None:
        """Remove the temporary files. Does nothing after `commit()` or `suspend()`."""
        if not self._done:
            for path in (self._bin, self._idx):
                path.unlink(missing_ok=True)
        self.suspend()

    def suspend(self) -> None:
        """End, but leave the temporary files."""
        self._done = True
        with contextlib.suppress(OSError):  # it flushes, and fails again where the disk is full
            self.tokens.close()
