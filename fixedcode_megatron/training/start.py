"""Where a run starts: which checkpoint it continues from, and whether it can save its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.training.agreement import one_rank_decides
from fixedcode_megatron.training.checkpoint_choice import RELEASE, find_checkpoint
from fixedcode_megatron.training.checkpoint_files import is_whole, whole_iterations
from fixedcode_megatron.training.folders import unwritable

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Source:
    """The checkpoint that a run starts with.

    Attributes
    ----------
    weights_only
        Whether it starts a new run, at iteration 0, instead of going on with this one.
    """

    path: Path
    weights_only: bool


def checkpoint_to_load(cfg: RunConfig) -> Source | None:
    """The checkpoint to start with; None starts from scratch. Every rank must call it.

    Raises
    ------
    UserError
        If `--load` or `--pretrained-checkpoint` holds none, or `--save` cannot be written to or
        holds another run.
    """
    # File systems may show ranks different things for a while.
    return one_rank_decides(lambda: _decide(cfg))


def _decide(cfg: RunConfig) -> Source | None:
    options = cfg.checkpoint
    load, pretrained = _path(options.load), _path(options.pretrained_checkpoint)
    save = None if cfg.training.skip_train else _path(options.save)
    same = load is not None and save is not None and load.resolve() == save.resolve()
    _refuse_own_source(cfg, save, same)
    path = load and find_checkpoint(load, options.ckpt_step, checksums=options.verify_integrity)
    if path is not None:
        source = Source(path=path, weights_only=options.finetune)
        if path.name == RELEASE and not options.finetune:
            raise UserError(f"--load {load}: {path} holds weights alone; add --finetune")
    elif pretrained is not None:
        source = _pretrained(pretrained, checksums=options.verify_integrity)
    elif load is None or (same and not options.exit_on_missing_checkpoint):
        source = None
    else:
        found = "holds no checkpoint" if load.is_dir() else "does not exist"
        raise UserError(
            f"--load {load} {found}; correct the path, leave --load out to start from random "
            "weights, or give the same folder as --save to start now and continue next time"
        )
    if save is not None:
        if not same:
            _refuse_another_runs_folder(save)
        if problem := unwritable("--save", save):
            raise UserError(problem)
    return source


def _path(folder: str | None) -> Path | None:
    return None if folder is None else Path(folder)


def _pretrained(folder: Path, *, checksums: bool) -> Source:
    path = find_checkpoint(folder, checksums=checksums)
    if path is None:
        found = "holds no checkpoint" if folder.is_dir() else "does not exist"
        raise UserError(f"--pretrained-checkpoint {folder} {found}; correct the path")
    return Source(path=path, weights_only=True)


def _refuse_own_source(cfg: RunConfig, save: Path | None, same: bool) -> None:
    """A run that starts with weights may neither replace them nor start with them every time."""
    options = cfg.checkpoint
    if save is None:
        return
    if same and options.finetune:
        raise UserError(
            f"--finetune with --load and --save {save}: each launch would start at iteration 0 "
            "and replace what the one before has saved; give the new run another --save, or name "
            "the weights with --pretrained-checkpoint and leave --finetune out"
        )
    weights = _path(options.pretrained_checkpoint)
    if weights is None:
        return
    folder = weights.resolve()
    if save.resolve() == (folder.parent if is_whole(folder) else folder):
        raise UserError(
            f"--pretrained-checkpoint {weights} and --save {save}: give the new run another --save"
        )


def _refuse_another_runs_folder(save: Path) -> None:
    found = whole_iterations(save) if save.is_dir() else []
    if found:
        raise UserError(
            f"--save {save} already holds checkpoints, up to iteration {found[-1]}, which this run "
            f"would mix with its own: go on from them with --load {save} (without --finetune), or "
            "name another folder"
        )
