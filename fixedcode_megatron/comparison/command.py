"""`tools/compare_runs.py`: train what a grid lacks, then report what its numbers support."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fixedcode_megatron.comparison.grid import Grid, read_grid
from fixedcode_megatron.comparison.slurm import sbatch_command, submit
from fixedcode_megatron.data.files import open_claimed
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.jobs.program import run_program
from fixedcode_megatron.jobs.progress import TrainingView
from fixedcode_megatron.jobs.text import text_table
from fixedcode_megatron.option_values import count

if TYPE_CHECKING:
    from fixedcode_megatron.jobs.job import Job

LOCK = ".compare.lock"


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the runs of a grid; returns the exit status (see `run_program`)."""
    options = _parser().parse_args(argv)
    return run_program(lambda: _compare(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="compare_runs.py",
        allow_abbrev=False,
        description="Train every run of a grid that is not complete yet, and write a report. "
        "Interrupted with Ctrl-C, the same command continues. docs/comparisons.md says what a grid "
        "file holds.",
    )
    parser.add_argument("grid", type=Path, help="YAML file, such as examples/grids/quickstart.yaml")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="say how far each run is, and stop")
    what.add_argument(
        "--dry-run",
        action="store_true",
        help="print each missing run's command and, with `gpu` in the grid, what it will cost",
    )
    what.add_argument("--slurm", action="store_true", help="print an sbatch command for each")
    what.add_argument("--submit", action="store_true", help="submit them")
    what.add_argument("--report", action="store_true", help="report on the complete runs alone")
    parser.add_argument("--folder", help="where runs and report go, in place of the grid's")
    parser.add_argument("--nproc-per-node", type=count, help="ranks of each run, by torchrun")
    parser.add_argument(
        "-j", "--jobs", type=count, default=1, help="runs that train beside each other; default: 1"
    )
    parser.add_argument(
        "--device", default="cpu", help="where hidden states are computed for the report"
    )
    return parser


def _compare(options: argparse.Namespace) -> None:
    from fixedcode_megatron.comparison.matched import refuse_foreign_settings
    from fixedcode_megatron.comparison.runs import plan_runs
    from fixedcode_megatron.jobs.training import is_finished

    grid = read_grid(options.grid, folder=options.folder, processes=options.nproc_per_node)
    jobs = plan_runs(grid)
    refuse_foreign_settings(jobs)
    missing = [job for job in jobs if not is_finished(job)]
    if options.list:
        _list(jobs)
    elif options.dry_run:
        _dry_run(grid, missing)
    elif options.slurm:
        for job in missing:
            print(shlex.join(sbatch_command(grid, job)))
    elif options.submit:
        for job in missing:
            print(submit(grid, job), flush=True)
    else:
        with _claimed(grid.folder) as lock:
            if missing and not options.report:
                _train(grid, [job.name for job in missing], lock, options.jobs)
                missing = []
            _report(grid, jobs, missing, options.device)


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[IO[bytes]]:
    folder.mkdir(parents=True, exist_ok=True)
    lock = open_claimed(folder / LOCK)
    if lock is None:
        raise UserError(f"another comparison works in {folder}: wait for it, or give --folder")
    with lock:
        yield lock


def _list(jobs: Sequence[Job]) -> None:
    from fixedcode_megatron.jobs.training import is_finished, trained_iterations

    rows = [
        (
            job.name,
            f"{trained_iterations(job):,}",
            f"{job.train_iters:,}",
            "complete" if is_finished(job) else "missing",
        )
        for job in jobs
    ]
    print(text_table(("run", "iteration", "of", ""), rows))


def _dry_run(grid: Grid, missing: Sequence[Job]) -> None:
    for job in missing:
        print(f"# {job.name}\n{job.command_text}")
    if not missing:
        print("every run is complete")
    elif grid.gpu:
        from fixedcode_megatron.comparison.cost import HEADER, cost_note, cost_rows

        print(f"\n{text_table(HEADER, cost_rows(grid, missing))}\n{cost_note(grid)}")


def _train(grid: Grid, names: Sequence[str], lock: IO[bytes], at_once: int) -> None:
    """Train these runs to their ends, `at_once` beside each other."""
    import torch

    from fixedcode_megatron.comparison.runs import plan_runs
    from fixedcode_megatron.jobs.training import train_all, trained_iterations

    if at_once > 1 and torch.cuda.is_available():
        raise UserError(
            f"--jobs {at_once}: the runs would share this machine's GPUs; give --jobs 1, --submit, "
            "or CUDA_VISIBLE_DEVICES= to train on its CPUs"
        )
    jobs = [job for job in plan_runs(grid, here=True) if job.name in names]
    left = sum(job.train_iters - trained_iterations(job) for job in jobs)
    train_all(jobs, TrainingView(sys.stdout, left), lock, at_once=at_once)


def _report(grid: Grid, jobs: Sequence[Job], missing: Sequence[Job], device: str) -> None:
    from fixedcode_megatron.comparison.page import write_report
    from fixedcode_megatron.comparison.report import make_report

    complete = [job for job in jobs if job not in missing]
    if not complete:
        raise UserError(f"{grid.folder}: no run is complete, so there is nothing to report")
    report = make_report(grid, complete, [job.name for job in missing], device)
    write_report(grid.folder, report)
    print(text_table(report.tables[0].header, report.tables[0].rows))
    print("\n".join(["", *report.findings, ""]))
    print(f"{grid.folder}: report.html, report.md, losses.csv, csv/, and a folder for each run")
