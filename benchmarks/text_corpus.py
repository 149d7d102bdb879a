"""Real text that every development machine has, as JSON lines.

Python's library and installed packages (sources, documentation), the system's documentation,
manual pages and C headers: mostly English prose and code, with some text in other languages. Every
different file of 200 bytes to 2 MB counts once; the order is that of a hash of the content, the
same wherever the same files are installed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import site
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_SUFFIXES = (".py", ".pyi", ".rst", ".md", ".txt", ".h", ".hpp", ".c", ".html", ".json", ".js")
_SYSTEM = ("/usr/share/doc", "/usr/share/man", "/usr/share/info", "/usr/include", "/usr/share/perl")


def gather(path: Path, size: int) -> int:
    """Write up to `size` bytes of JSON lines to `path`; returns what was found."""
    texts: dict[bytes, str] = {}
    found = 0
    for text in _texts():
        digest = hashlib.sha256(text.encode()).digest()
        if digest not in texts:
            texts[digest] = text
            found += len(text)
        if found > size * 1.05:
            break
    written = 0
    with open(path, "wb") as stream:
        for digest in sorted(texts):
            line = json.dumps({"text": texts[digest]}, ensure_ascii=False).encode() + b"\n"
            if written + len(line) > size:
                break
            written += stream.write(line)
    return written


def _texts() -> Iterator[str]:
    folders = [*site.getsitepackages(), sysconfig.get_paths()["stdlib"], *_SYSTEM]
    for folder in map(Path, folders):
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            packed = path.suffix == ".gz"
            if not packed and path.suffix not in _SUFFIXES:
                continue
            try:
                if not path.is_file() or not 200 <= path.stat().st_size <= 2_000_000:
                    continue
                data = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
                yield data.decode("utf-8")
            except (OSError, EOFError, ValueError):
                continue
