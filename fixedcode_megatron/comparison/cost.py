"""What the planner expects of each run: hours, GPU-hours and dollars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.jobs.job import Job

if TYPE_CHECKING:
    from fixedcode_megatron.comparison.grid import Grid

HEADER = ("run", "GiB", "tokens", "tokens/s", "hours", "GPU-hours", "cost $")


def cost_rows(grid: Grid, jobs: Sequence[Job]) -> list[tuple[str, ...]]:
    """One row for each run, then the sum; predictions for the layout that the flags say."""
    from fixedcode_megatron.planning.hardware import GIB, GPUS
    from fixedcode_megatron.planning.plan import make_plan

    gpu = GPUS[grid.gpu or "h100"]
    rows: list[tuple[str, ...]] = []
    total = 0.0
    for job in jobs:
        try:
            plan = make_plan(job.cfg, gpu, grid.processes)
        except UserError as error:
            raise UserError(f"run {job.name}: the planner cannot tell its cost: {error}") from error
        training = job.cfg.training
        assert training.global_batch_size is not None
        tokens = job.train_iters * training.global_batch_size * job.cfg.model.seq_length
        hours = plan.hours(tokens)
        total += hours * grid.processes
        memory = f"{plan.memory.total / GIB:.1f}" + ("" if plan.fits else " (too much)")
        rows.append(
            (
                job.name,
                memory,
                f"{tokens / 1e9:,.1f}B",
                f"{plan.tokens_per_second:,.0f}",
                f"{hours:,.1f}",
                f"{hours * grid.processes:,.0f}",
                f"{hours * grid.processes * gpu.price:,.0f}",
            )
        )
    rows.append(("all", "", "", "", "", f"{total:,.0f}", f"{total * gpu.price:,.0f}"))
    return rows


def cost_note(grid: Grid) -> str:
    """What the rows are of."""
    from fixedcode_megatron.planning.hardware import GPUS

    gpu = GPUS[grid.gpu or "h100"]
    return (
        f"predicted for {grid.processes} {gpu.name} at {gpu.price} $ a GPU-hour; not measured "
        "(docs/scaling.md says how far to trust it)"
    )
