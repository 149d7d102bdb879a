"""Decompressed bytes of a file, in chunks; damage and cut ends are errors."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from fixedcode_megatron.errors import UserError

CHUNK = 1 << 18


def chunks(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield (decompressed bytes, bytes of the file read so far).

    Raises
    ------
    UserError
        If the file cannot be opened, is damaged or cut short, or its library is missing.
    """
    try:
        with open(path, "rb") as raw:
            for data in _OPENERS.get(path.suffix, _plain)(raw):
                yield data, raw.tell() if raw.seekable() else 0
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise UserError(f"{path}: the compressed file is damaged or cut short ({error})") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def _until_empty(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while data := read(CHUNK):
        yield data


def _plain(raw: IO[bytes]) -> Iterator[bytes]:
    return _until_empty(raw.read)


def _gzip(raw: IO[bytes]) -> Iterator[bytes]:
    return _until_empty(gzip.GzipFile(fileobj=raw).read)


def _xz(raw: IO[bytes]) -> Iterator[bytes]:
    return _until_empty(lzma.LZMAFile(raw).read)


def _bz2(raw: IO[bytes]) -> Iterator[bytes]:
    return _until_empty(bz2.BZ2File(raw).read)


def _zst(raw: IO[bytes]) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise UserError(
            f"{raw.name}: needs the zstandard library: pip install zstandard"
        ) from error
    whole = True
    frame = zstandard.ZstdDecompressor().decompressobj()
    try:
        while data := raw.read(CHUNK):
            while data:
                yield frame.decompress(data)
                whole, data = frame.eof, frame.unused_data
                if whole:
                    frame = zstandard.ZstdDecompressor().decompressobj()
    except zstandard.ZstdError as error:
        raise EOFError(str(error)) from error
    if not whole:
        raise EOFError("its last frame has no end")


_OPENERS: dict[str, Callable[[IO[bytes]], Iterator[bytes]]] = {
    ".gz": _gzip,
    ".xz": _xz,
    ".bz2": _bz2,
    ".zst": _zst,
}
