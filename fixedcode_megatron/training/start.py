"""Where a run starts: which checkpoint it continues from, and whether it can save its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch.distributed as dist

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.training.checkpoint_files import find_checkpoint, whole_iterations

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig

T = TypeVar("T")


def checkpoint_to_load(cfg: RunConfig) -> Path | None:
    """The checkpoint to continue from; None starts from scratch. Every rank must call it.

    Raises
    ------
    UserError
        If `--load` holds none, or `--save` cannot be written to or holds another run.
    """
    return first_rank_decides(lambda: _decide(cfg))


def first_rank_decides(work: Callable[[], T]) -> T:
    """Run `work` on rank 0 alone, for file systems may show ranks different things for a while.

    Its result, or its `UserError`, is that of every rank.
    """
    outcome: list[T | str | None] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = work()
        except UserError as error:
            outcome[1] = str(error)
    dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise UserError(str(outcome[1]))
    return outcome[0]  # type: ignore[return-value]


def _decide(cfg: RunConfig) -> Path | None:
    options = cfg.checkpoint
    load = None if options.load is None else Path(options.load)
    save = None if options.save is None or cfg.training.skip_train else Path(options.save)
    same = load is not None and save is not None and load.resolve() == save.resolve()
    path = None if load is None else find_checkpoint(load, options.ckpt_step)
    if load is not None and path is None and (not same or options.exit_on_missing_checkpoint):
        found = "holds no checkpoint" if load.is_dir() else "does not exist"
        raise UserError(
            f"--load {load} {found}; correct the path, leave --load out to start from random "
            "weights, or give the same folder as --save to start now and continue next time"
        )
    if save is not None:
        if same and options.finetune:
            raise UserError(
                f"--finetune with --load and --save {save}: each launch would start at iteration 0 "
                "and replace what the one before has saved; give the new run another --save"
            )
        if not same:
            _refuse_another_runs_folder(save)
        _refuse_unwritable(save)
    return path


def _refuse_another_runs_folder(save: Path) -> None:
    found = whole_iterations(save) if save.is_dir() else []
    if found:
        raise UserError(
            f"--save {save} already holds checkpoints, up to iteration {found[-1]}, which this run "
            f"would mix with its own: go on from them with --load {save} (without --finetune), or "
            "name another folder"
        )


def _refuse_unwritable(save: Path) -> None:
    """Find out now, not after the hours until the first checkpoint."""
    try:
        save.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=save) as probe:
            probe.write(b"\0" * 4096)
    except OSError as error:
        raise UserError(f"--save {save} cannot be written to: {error}") from error
