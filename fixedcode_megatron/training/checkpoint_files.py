"""Where checkpoints lie, and how they appear whole or not at all.

SAVE/iter_0000010/...                     a whole checkpoint (metadata.json is its commit mark)
SAVE/.iter_0000020.partial/...            one that is being written, or was when the job died
SAVE/latest_checkpointed_iteration.txt    the newest whole one; moves last
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from fixedcode_megatron.errors import UserError

TRACKER = "latest_checkpointed_iteration.txt"
COMMIT_MARK = "metadata.json"
_ITERATION = re.compile(r"iter_(\d{7,})")


def checkpoint_path(root: Path, iteration: int) -> Path:
    """Folder of the whole checkpoint of an iteration."""
    return root / f"iter_{iteration:07d}"


def partial_path(root: Path, iteration: int) -> Path:
    """Folder that the checkpoint of an iteration is written into."""
    return root / f".iter_{iteration:07d}.partial"


def is_whole(path: Path) -> bool:
    """Whether a checkpoint was written to its end."""
    return (path / COMMIT_MARK).is_file()


def whole_iterations(root: Path) -> list[int]:
    """Iterations with a whole checkpoint under `root`, ascending."""
    found = (_ITERATION.fullmatch(entry.name) for entry in root.glob("iter_*"))
    return sorted(int(m[1]) for m in found if m and is_whole(root / m[0]))


def read_tracker(root: Path) -> int | None:
    """Iteration in the tracker file, or None where there is none.

    Raises
    ------
    UserError
        If the file holds anything but a number.
    """
    tracker = root / TRACKER
    if not tracker.is_file():
        return None
    text = tracker.read_text(encoding="utf-8").strip()
    if not text.isdigit():
        raise UserError(f"{tracker} holds {text!r}, not an iteration; name one with --ckpt-step")
    return int(text)


def find_checkpoint(root: Path, step: int | None = None) -> Path | None:
    """The checkpoint to load from `root`: of iteration `step`, else the tracker's.

    Returns
    -------
    Path or None
        None where `root` holds no checkpoint at all.

    Raises
    ------
    UserError
        If iteration `step` is not there, or the tracker names a checkpoint that is not whole.
    """
    available = whole_iterations(root) if root.is_dir() else []
    wanted = step if step is not None else (read_tracker(root) if root.is_dir() else None)
    if wanted is None and not available:
        return None
    listing = ", ".join(map(str, available)) or "none"
    if wanted is None:
        raise UserError(
            f"{root} has no {TRACKER}; name one of its checkpoints with --ckpt-step: {listing}"
        )
    path = checkpoint_path(root, wanted)
    if not is_whole(path):
        origin = f"--ckpt-step {wanted}" if step is not None else f"{root / TRACKER}"
        raise UserError(f"{origin}: {path} is not a whole checkpoint; whole ones: {listing}")
    return path


def prepare(root: Path, iteration: int) -> Path:
    """Make the empty folder that a checkpoint is written into (on one rank)."""
    partial = partial_path(root, iteration)
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    return partial


def publish(root: Path, iteration: int) -> Path:
    """Give a completely written checkpoint its name and move the tracker (on one rank)."""
    partial, final = partial_path(root, iteration), checkpoint_path(root, iteration)
    for entry in partial.iterdir():
        if entry.is_file():
            _fsync(entry)
    _fsync(partial)
    replaced = root / f".iter_{iteration:07d}.replaced"
    if final.exists():
        # Saved before, by a run that died before it moved the tracker, or one that was rewound.
        # Deleting it takes long, and whoever dies meanwhile must leave a whole one: so set aside.
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    partial.rename(final)
    _fsync(root)
    write_atomically(root / TRACKER, f"{iteration}\n")
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def remove_old(root: Path, keep: int | None, *, newest: int | None = None) -> None:
    """Delete what dead runs left behind, and all but `keep` whole checkpoints up to `newest`.

    Later ones are of a run that was rewound with `--ckpt-step`: they stay until they are replaced,
    and do not crowd out the ones that this run has made.
    """
    for leftover in (*root.glob(".iter_*.partial"), *root.glob(".iter_*.replaced")):
        shutil.rmtree(leftover, ignore_errors=True)
    if keep is None:
        return
    own = [i for i in whole_iterations(root) if newest is None or i <= newest]
    for iteration in own[:-keep]:
        shutil.rmtree(checkpoint_path(root, iteration))


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that readers see the old or the new content, never a part."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    _fsync(path.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
