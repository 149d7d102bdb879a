"""Files that appear whole or not at all, and locks between processes."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def fsync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut (where the file system allows it)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def flush_to_disk(stream: IO) -> None:
    """Flush Python's and the kernel's buffers of an open file."""
    stream.flush()
    os.fsync(stream.fileno())


def holds(path: Path, size: int) -> bool:
    """Whether there is a file of at least `size` bytes."""
    return path.is_file() and path.stat().st_size >= size


def start_writing(stream: IO, offset: int) -> None:
    """Let the kernel begin to write what lies from `offset` on, so that a flush later is short.

    Does nothing where the system cannot be asked.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.sync_file_range(stream.fileno(), ctypes.c_long(offset), ctypes.c_long(0), 2)


def temporary_beside(path: Path) -> Path:
    """A temporary name for a file or folder; what a killed process left there, the next takes."""
    return path.with_name(f".{path.name}.partial")


def write_text_whole(path: Path, text: str) -> None:
    """Write `text` under a temporary name beside `path`, then rename it to `path`.

    Of several processes that do so at once, the last one wins.
    """
    temporary = temporary_beside(path)
    stream = open_claimed(temporary, wait=True)
    assert stream is not None
    with stream:
        try:
            stream.write(text.encode())
            flush_to_disk(stream)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    fsync_folder(path.parent)


def sha256_of_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file, read in blocks."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a lock between the processes of this file system; waits for whoever holds it.

    The kernel releases it when the holder ends, however it ends, so a killed process blocks nobody.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(stream, fcntl.LOCK_UN)


def open_claimed(path: Path, *, keep: bool = False, wait: bool = False) -> IO[bytes] | None:
    """Open `path` for appending and claim it; None if another process has it, unless `wait`.

    What a killed process left under this name is discarded, unless `keep` is true. The loop guards
    against the former owner renaming the file between our `open` and our lock: then the name is
    another file by now.
    """
    while True:
        stream = open(path, "ab")  # noqa: SIM115  (handed to the caller)
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            stream.close()
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(stream.fileno()), os.stat(path)):
                if not keep:
                    stream.truncate(0)
                return stream
        stream.close()
