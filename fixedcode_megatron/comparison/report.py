"""From the folders of complete runs to the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fixedcode_megatron import pretrain
from fixedcode_megatron.comparison import tables
from fixedcode_megatron.comparison.activations import final_spectra
from fixedcode_megatron.comparison.benchmarks import benchmarks
from fixedcode_megatron.comparison.figures import figures
from fixedcode_megatron.comparison.grid import Grid
from fixedcode_megatron.comparison.matched import check_matched
from fixedcode_megatron.comparison.page import Report
from fixedcode_megatron.comparison.results import grouped, read_result, sentence
from fixedcode_megatron.config.token_code import token_code

if TYPE_CHECKING:
    from fixedcode_megatron.jobs.job import Job


def make_report(grid: Grid, jobs: Sequence[Job], missing: Sequence[str], device: str) -> Report:
    """Check that the runs are matched, measure their checkpoints, and do the arithmetic.

    Raises
    ------
    UserError
        If they are not matched.
    """
    by_name = {job.name: job for job in jobs}
    cells = [cell for cell in grid.cells if cell.name in by_name]
    results = [read_result(grid, cell, by_name[cell.name]) for cell in cells]
    matched = check_matched(
        grid,
        by_name,
        {run.name: run.history for run in results},
        {run.name: run.weights for run in results},
    )
    results = [replace(run, spectra=final_spectra(by_name[run.name], device)) for run in results]
    groups = grouped(grid, results)
    found = [
        tables.summary(groups),
        benchmarks(groups),
        tables.machine(groups),
        tables.gradients(groups),
        tables.ranks(groups, _code_bits(jobs)),
        tables.runs(results),
    ]
    return Report(
        title=grid.title,
        findings=[
            sentence(members[0], other) for members in groups.values() for other in members[1:]
        ],
        matched=list(matched.values()),
        missing=missing,
        tables=[table for table in found if table is not None],
        figures=figures(groups),
        commands=[run.command for run in results],
        losses=tables.losses(results),
    )


def _code_bits(jobs: Sequence[Job]) -> int | None:
    """K of the runs' token codes, if they have one K."""
    found = set()
    for job in jobs:
        if job.cfg.input.input_interface != "learned":
            size = pretrain.vocab_size(job.cfg, pretrain.load_tokenizer(job.cfg))
            code = token_code(job.cfg.input, size)
            found.add(code.num_bits if code else None)
    return found.pop() if len(found) == 1 else None
