"""Which checkpoint of a folder is loaded, and what happens where that one is damaged."""

from __future__ import annotations

import logging
from pathlib import Path

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.training.checkpoint_files import (
    TRACKER,
    checkpoint_path,
    is_whole,
    tracker_text,
    unfinished,
    whole_iterations,
)
from fixedcode_megatron.training.checkpoint_integrity import damage

RELEASE = "release"  # Megatron-LM's name for weights that are nobody's iteration

logger = logging.getLogger(__name__)


def find_checkpoint(root: Path, step: int | None = None, *, checksums: bool = False) -> Path | None:
    """The checkpoint to load from `root`: of iteration `step`, else the tracker's.

    Where the tracker's is damaged, the newest undamaged one before it is taken, with a warning that
    says what was wrong. Call it on one rank.

    Parameters
    ----------
    root
        Folder of checkpoints; or one checkpoint, whatever its name.
    checksums
        Compare contents, too (`--verify-integrity`).

    Returns
    -------
    Path or None
        None where `root` holds no checkpoint at all.

    Raises
    ------
    UserError
        If iteration `step` is missing or damaged, or no undamaged checkpoint is left.
    """
    if is_whole(root):
        _must_be_undamaged(root, str(root), checksums)
        return root
    available, tracked = whole_iterations(root), tracker_text(root)
    if step is not None:
        _must_be_undamaged(checkpoint_path(root, step), f"--ckpt-step {step}", checksums, available)
        return checkpoint_path(root, step)
    if tracked == RELEASE:
        _must_be_undamaged(root / RELEASE, str(root / TRACKER), checksums)
        return root / RELEASE
    if not available and not tracked:
        return None
    return _newest_undamaged(root, available, tracked, checksums)


def _must_be_undamaged(
    path: Path, origin: str, checksums: bool, available: list[int] | None = None
) -> None:
    problem = damage(path, checksums=checksums)
    if problem is not None:
        others = "" if available is None else f"; whole ones: {_listing(available)}"
        raise UserError(f"{origin}: {path} is not a whole checkpoint: {problem}{others}")


def _newest_undamaged(root: Path, available: list[int], tracked: str, checksums: bool) -> Path:
    if tracked.isdigit():
        newest, problems = int(tracked), []
    else:  # the job died between the first checkpoint's last byte and its tracker
        said = f"holds {tracked!r}, not an iteration" if tracked else "is missing"
        newest, problems = max(available, default=0), [f"{root / TRACKER} {said}"]
    for iteration in sorted({newest, *(i for i in available if i < newest)}, reverse=True):
        path = checkpoint_path(root, iteration)
        problem = damage(path, checksums=checksums)
        if problem is None:
            _tell(root, path, problems)
            return path
        problems.append(f"{path} is damaged: {problem}")
    later = [i for i in available if i > newest]
    raise UserError(
        f"{'; '.join(problems)}. No whole checkpoint is left to go on from"
        + (f"; later ones, to choose with --ckpt-step: {_listing(later)}" if later else "")
        + ". To start from scratch, name another folder"
    )


def _tell(root: Path, chosen: Path, problems: list[str]) -> None:
    """One warning for all that was found on the way to `chosen`."""
    problems = [*problems, *(f"{root / name} was never finished" for name in unfinished(root))]
    if problems:
        logger.warning("%s; going on from %s", "; ".join(problems), chosen)


def _listing(iterations: list[int]) -> str:
    return ", ".join(map(str, iterations)) or "none"
