"""Whether a checkpoint is whole: what its files should be, and what is wrong with them.

`integrity.json` is written last, when every rank's files are on disk. Its `files` are SHA-256 sums,
as Megatron-LM's `--verify-integrity` writes and reads them; `sizes` are ours, and always there.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

COMMIT_MARK = "metadata.json"
RECORD = "integrity.json"
_ALGORITHM = "sha256"

logger = logging.getLogger(__name__)


def record(path: Path, *, checksums: bool) -> None:
    """Write down the size of each file in the checkpoint `path`, and its sum if asked to."""
    files = {entry.name: entry for entry in sorted(path.iterdir()) if entry.is_file()}
    content: dict[str, object] = {"sizes": {name: f.stat().st_size for name, f in files.items()}}
    if checksums:
        content |= {"algorithm": _ALGORITHM, "files": {n: _sum(f) for n, f in files.items()}}
    (path / RECORD).write_text(json.dumps(content, indent=1), encoding="utf-8")


def damage(path: Path, *, checksums: bool = False) -> str | None:
    """What is wrong with the checkpoint in `path`; None if nothing is.

    Sizes tell lost, cut-off and empty files for the price of a directory listing; `checksums` reads
    every byte. A checkpoint without a record (Megatron-LM's) must have its two metadata files and
    no empty one.
    """
    if not path.is_dir():
        return "the folder is missing"
    try:
        if "sharded_backend" not in json.loads((path / COMMIT_MARK).read_text("utf-8")):
            return f"{COMMIT_MARK} names no format"
        return _damage_by_record(path, checksums) or _damaged_file(path)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        return f"its metadata cannot be read ({error})"


def _damage_by_record(path: Path, checksums: bool) -> str | None:
    if not (path / RECORD).is_file():
        return None
    content = json.loads((path / RECORD).read_text("utf-8"))
    for name, size in content.get("sizes", {}).items():
        found = (path / name).stat().st_size
        if found != size:
            return f"{name} has {found:,} bytes instead of {size:,}"
    if checksums and "files" not in content:
        logger.warning("%s was saved without --verify-integrity: only sizes are compared", path)
    elif checksums:
        for name, expected in content["files"].items():
            if _sum(path / name) != expected:
                return f"the content of {name} has changed since it was written"
    return None


def _damaged_file(path: Path) -> str | None:
    """What every checkpoint must have, for those without a record."""
    (path / ".metadata").stat()
    empty = [entry.name for entry in path.iterdir() if entry.is_file() and not entry.stat().st_size]
    return f"{min(empty)} is empty" if empty else None


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, _ALGORITHM).hexdigest()
