"""Which files `--input` means, in which order, and of which kind each one is."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from fixedcode_megatron.data.natural import natural_key
from fixedcode_megatron.errors import UserError

_LINES = (".jsonl", ".json", ".ndjson")
_PACKED = (".gz", ".zst", ".xz", ".bz2")
_KINDS = {
    **dict.fromkeys(_LINES, "lines"),
    **{line + packed: "packed lines" for line in _LINES for packed in _PACKED},
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
SUFFIXES = tuple(_KINDS)
READABLE = (
    f"{', '.join(_LINES)} (plain or {', '.join(_PACKED)}), .parquet, .arrow, .feather and .txt "
    "(a file is a document)"
)


def kind_of(path: Path) -> str | None:
    """ "lines", "packed lines", "text", "parquet", "arrow", or None."""
    for suffix, kind in _KINDS.items():
        if path.name.endswith(suffix):
            return kind
    return None


def expand_inputs(patterns: Sequence[str]) -> list[Path]:
    """Files named by paths, globs and folders, in the order given.

    The files of one glob or folder (with its subfolders) come in natural order: `part_2` before
    `part_10`. Hidden files and folders are left out.

    Raises
    ------
    UserError
        If a pattern matches nothing, or a file is of a kind that cannot be read.
    """
    found: list[Path] = []
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            matches = [p for p in path.rglob("*") if _is_documents(p, path)]
        elif path.exists():
            matches = [path]
        else:
            matches = [Path(p) for p in glob.glob(pattern, recursive=True) if Path(p).is_file()]
        if not matches and path.is_dir():
            raise UserError(
                f"--input {pattern}: no such file: a folder without documents; known are {READABLE}"
            )
        if not matches:
            raise UserError(f"--input {pattern}: no such file, and no document file matches")
        found.extend(sorted(matches, key=lambda p: natural_key(str(p))))
    for path in found:
        if kind_of(path) is None:
            raise UserError(f"--input {path}: cannot read this kind; known are {READABLE}")
    return found


def _is_documents(path: Path, folder: Path) -> bool:
    """A file of a known kind that is neither hidden nor what a preprocessing left."""
    if kind_of(path) is None or not path.is_file():
        return False
    if any(part.startswith(".") for part in path.relative_to(folder).parts):
        return False
    summary = path.suffix == ".json" and path.with_suffix(".idx").exists()
    return not summary and not path.name.endswith("_rejected.jsonl")
