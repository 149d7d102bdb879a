"""`tools/quickstart.py`: data, three trainings, one comparison; interrupted, it continues."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fixedcode_megatron import __version__, runtime
from fixedcode_megatron.data.files import open_claimed, write_text_whole
from fixedcode_megatron.data.recipes import prepare_python_library
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.jobs.job import Job, refuse_changed_flags
from fixedcode_megatron.jobs.program import run_program
from fixedcode_megatron.jobs.progress import TrainingView, clock
from fixedcode_megatron.quickstart.plan import DEFAULT_RUN_DIR, plan_jobs, uses_own_data
from fixedcode_megatron.training.metrics_file import METRICS_FILE, History, read_history

if TYPE_CHECKING:
    from fixedcode_megatron.quickstart.report import Report

_EXPLANATIONS = {
    "learned": "a trained table has a row for each token",
    "binary": "the bits of the token's id, no parameters",
    "gf2": "those bits recoded by an invertible matrix, no parameters",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the quickstart; returns the exit status (see `run_program`)."""
    own, extra = _parser().parse_known_args(argv)
    return run_program(lambda: quickstart(own.run_dir, extra))


def quickstart(run_dir: str, extra: Sequence[str]) -> None:
    """Prepare the data, train what is not trained yet, and write the report."""
    jobs = plan_jobs(run_dir, extra)
    Path(run_dir).mkdir(parents=True, exist_ok=True)
    lock = open_claimed(Path(run_dir) / ".quickstart.lock")
    if lock is None:
        raise UserError(f"another quickstart works in {run_dir}: wait for it, or give --run-dir")
    with lock:
        _run(jobs, run_dir, lock)


def _run(jobs: Sequence[Job], run_dir: str, lock: IO[bytes]) -> None:
    started = time.monotonic()
    for job in jobs:
        refuse_changed_flags(job)
    if uses_own_data(jobs[0], run_dir):
        print("Data: Python's own documentation and library, made once per run folder", flush=True)
        vocab_size = jobs[0].cfg.model.vocab_size or 4096
        data = prepare_python_library(
            Path(run_dir) / "data", vocab_size, progress=sys.stderr.isatty()
        )
        print(f"  {data.documents:,} documents, {data.tokens:,} tokens, V = {data.vocab_size:,}")
    _train_all(jobs, lock)
    print("Comparing the three models ...", flush=True)
    report, histories = _measure(jobs)
    _write(Path(run_dir), report, histories, jobs[0])
    print(f"Everything is in {run_dir}: report.md, report.json, curves.png, and a folder per model")
    print(f"({clock(time.monotonic() - started)} minutes this time)")


def _train_all(jobs: Sequence[Job], lock: IO[bytes]) -> None:
    from fixedcode_megatron.jobs.training import is_finished, train_all, trained_iterations

    todo = [job for job in jobs if not is_finished(job)]
    left = sum(max(0, job.train_iters - trained_iterations(job)) for job in todo)
    view = TrainingView(sys.stdout, left)
    for number, job in enumerate(jobs, start=1):
        print(f"[{number}/{len(jobs)}] {job.name}: {_EXPLANATIONS[job.name]}", flush=True)
        if job in todo:
            train_all([job], view, lock)
        else:
            print(f"  trained already ({job.folder}), nothing to do")


def _measure(jobs: Sequence[Job]) -> tuple[Report, dict[str, History]]:
    from fixedcode_megatron.quickstart import analyse
    from fixedcode_megatron.quickstart.report import Report

    histories = {job.name: read_history(job.folder / METRICS_FILE) for job in jobs}
    checksums = {name: history.data_checksum for name, history in histories.items()}
    if len(set(checksums.values())) != 1:
        raise UserError(
            f"the models have not read the same samples (checksums {checksums}): delete "
            f"{jobs[0].folder.parent} and start anew"
        )
    baselines, evaluated = analyse.counting_baselines(jobs[0])
    started = runtime.initialize(jobs[0].cfg)
    models = []
    for job in jobs:
        print(f"  {job.name}", flush=True)
        models.append(analyse.analyse(job, histories[job.name], started))
    report = Report(
        models=models,
        baselines=baselines,
        evaluated_tokens=evaluated,
        commands=[job.command_text for job in jobs],
        versions=_versions(started.device_name),
    )
    return report, histories


def _write(run_dir: Path, report: Report, histories: dict[str, History], job: Job) -> None:
    from fixedcode_megatron.quickstart.curves import draw_curves
    from fixedcode_megatron.quickstart.report import to_markdown, to_text

    training = job.cfg.training
    assert training.global_batch_size is not None
    tokens = training.global_batch_size * job.cfg.model.seq_length
    drawn = draw_curves(run_dir / "curves.png", histories, tokens, report.baselines)
    if not drawn:
        print("no curves.png: matplotlib is missing (pip install 'fixedcode-megatron[plots]')")
    write_text_whole(run_dir / "report.md", to_markdown(report, with_curves=drawn))
    write_text_whole(run_dir / "report.json", json.dumps(report.to_dict(), indent=1) + "\n")
    print(f"\n{to_text(report)}\n")


def _versions(device: str) -> dict[str, str]:
    import megatron.core
    import torch

    return {
        "fixedcode-megatron": __version__,
        "megatron-core": megatron.core.__version__,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "device": f"{device}, {len(os.sched_getaffinity(0))} CPUs, {platform.machine()}",
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        description="Train a small model with each input interface (learned, binary, gf2) on text "
        "that every Python brings along, and compare them. Needs no GPU. Interrupted with Ctrl-C, "
        "the same command continues.",
        epilog="Every other flag goes to the training program, such as --train-iters 100 or "
        "--num-layers 2 (python -m fixedcode_megatron.pretrain --help lists them).",
    )
    parser.add_argument("--run-dir", default=DEFAULT_RUN_DIR, help="folder for all results")
    return parser
