"""The grid's runs as jobs: resolved at once, so that every mistake shows before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fixedcode_megatron.comparison.grid import Cell, Grid
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.jobs.job import Job

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig

CHECKPOINTS = "checkpoints"


def plan_runs(grid: Grid, *, here: bool = False) -> list[Job]:
    """One job for each cell of the grid, in its order.

    Parameters
    ----------
    here
        Also check what depends on this machine: that its devices and the data are there.

    Raises
    ------
    UserError
        With every mistake in the flags, each once, with the first run that makes it.
    """
    jobs: list[Job] = []
    problems: dict[str, str] = {}
    for cell in grid.cells:
        try:
            jobs.append(_job(grid, cell, here))
        except UserError as error:
            for line in str(error).splitlines():
                problems.setdefault(line, cell.name)
    if problems:
        raise UserError("\n".join(f"run {name}: {line}" for line, name in problems.items()))
    return jobs


def _job(grid: Grid, cell: Cell, here: bool) -> Job:
    folder = grid.folder / cell.name
    checkpoints = str(folder / CHECKPOINTS)
    flags = [*cell.flags, "--run-dir", str(folder), "--save", checkpoints, "--load", checkpoints]
    cfg = _resolved(flags if here else [*flags, "--print-config"], grid.processes)
    if cfg.training.train_iters is None:
        raise UserError("a comparison counts in iterations: give --train-iters, not samples")
    if not cfg.training.eval_iters:
        raise UserError("--eval-iters 0 leaves nothing to compare: give 1 or more")
    return Job(cell.name, folder, tuple(flags), cfg, grid.processes)


def _resolved(flags: Sequence[str], processes: int) -> RunConfig:
    from fixedcode_megatron.config import parse_args

    return parse_args(flags, world_size=processes)
