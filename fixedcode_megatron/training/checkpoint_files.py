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

from fixedcode_megatron.training.checkpoint_integrity import COMMIT_MARK

TRACKER = "latest_checkpointed_iteration.txt"
_ITERATION = re.compile(r"iter_(\d{7,})")


def checkpoint_path(root: Path, iteration: int) -> Path:
    """Folder of the whole checkpoint of an iteration."""
    return root / f"iter_{iteration:07d}"


def partial_path(root: Path, iteration: int) -> Path:
    """Folder that the checkpoint of an iteration is written into."""
    return root / f".iter_{iteration:07d}.partial"


def is_whole(path: Path) -> bool:
    """Whether a checkpoint was written to its end (what happened later, `damage` tells)."""
    return (path / COMMIT_MARK).is_file()


def whole_iterations(root: Path) -> list[int]:
    """Iterations with a completely written checkpoint under `root`, ascending."""
    found = (_ITERATION.fullmatch(entry.name) for entry in root.glob("iter_*"))
    return sorted(int(m[1]) for m in found if m and is_whole(root / m[0]))


def unfinished(root: Path) -> list[str]:
    """Names of the folders that saves have left behind when their job died."""
    return sorted(entry.name for entry in root.glob(".iter_*.partial"))


def read_tracker(root: Path) -> int | None:
    """Iteration in the tracker file; None where there is none, or where it holds no number."""
    text = tracker_text(root)
    return int(text) if text.isdigit() else None


def tracker_text(root: Path) -> str:
    """What the tracker file says, an iteration or `release`; empty where there is none."""
    tracker = root / TRACKER
    return tracker.read_text("utf-8", errors="replace").strip() if tracker.is_file() else ""


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


def remove_old(
    root: Path, keep: int | None, *, retain_interval: int | None = None, newest: int | None = None
) -> None:
    """Delete what dead runs left behind, and whole checkpoints that are no longer wanted.

    Call it when the tracker names a whole checkpoint: that one is always kept.

    Parameters
    ----------
    keep
        How many of the newest stay; None keeps all, or one where `retain_interval` is given.
    retain_interval
        Checkpoints of iterations that divide by it stay for good (`--save-retain-interval`).
    newest
        The current iteration. Later checkpoints are of a run that was rewound with `--ckpt-step`:
        they stay until they are replaced, and do not crowd out the ones that this run has made.
    """
    for leftover in (*root.glob(".iter_*.partial"), *root.glob(".iter_*.replaced")):
        shutil.rmtree(leftover, ignore_errors=True)
    if keep is None and retain_interval is None:
        return
    own = [i for i in whole_iterations(root) if newest is None or i <= newest]
    tracked = read_tracker(root)
    for iteration in own[: -(keep or 1)]:
        path = checkpoint_path(root, iteration)
        retained = iteration == tracked or bool(retain_interval and not iteration % retain_interval)
        if not retained and not path.is_symlink():  # a link's target is another run's
            shutil.rmtree(path)


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
