"""One Slurm job for each missing run."""

from __future__ import annotations

import shlex
import shutil
import subprocess

from fixedcode_megatron.comparison.grid import Grid
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.jobs.job import Job

JOB_FILE = "slurm_job_id.txt"


def sbatch_command(grid: Grid, job: Job) -> list[str]:
    """The command that submits a run; its script continues the run until it is complete.

    Raises
    ------
    UserError
        If the run names no preset: the program that the scripts start would choose one.
    """
    if "--config" not in job.flags:
        raise UserError(
            f"run {job.name}: on Slurm a run needs a preset; name it with `config` in the grid"
        )
    return [
        "sbatch",
        f"--job-name={grid.folder.name}-{job.name}",
        f"--export=ALL,RUN_FOLDER={job.checkpoints}",
        *grid.slurm_options,
        grid.slurm_script,
        *job.flags,
    ]


def submit(grid: Grid, job: Job) -> str:
    """Submit a run, unless its job is still in the queue; returns what was done, for the user.

    Raises
    ------
    UserError
        If there is no `sbatch`, or it refuses.
    """
    if shutil.which("sbatch") is None:
        raise UserError("--submit: there is no sbatch here; --slurm prints the commands")
    record = job.folder / JOB_FILE
    earlier = record.read_text(encoding="utf-8").strip() if record.is_file() else ""
    if earlier and _is_queued(earlier):
        return f"{job.name}: job {earlier} is in the queue already"
    job.folder.mkdir(parents=True, exist_ok=True)
    command = sbatch_command(grid, job)
    done = subprocess.run(
        [*command[:1], "--parsable", *command[1:]], capture_output=True, text=True
    )
    if done.returncode:
        raise UserError(f"{shlex.join(command)}: {done.stderr.strip()}")
    number = done.stdout.strip().split(";")[0]
    record.write_text(number + "\n", encoding="utf-8")
    return f"{job.name}: job {number}"


def _is_queued(number: str) -> bool:
    found = subprocess.run(
        ["squeue", "--noheader", "--jobs", number], capture_output=True, text=True
    )
    return found.returncode == 0 and bool(found.stdout.strip())
