"""What a quickstart will do: a training job for each interface, resolved before any starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.jobs.job import Job, shown

INTERFACES = ("learned", "binary", "gf2")
PRESET = Path(__file__).resolve().parents[2] / "examples" / "configs" / "quickstart.yaml"
DEFAULT_RUN_DIR = "runs/quickstart"
_OURS = {
    "--input-interface": "all are trained; python -m fixedcode_megatron.pretrain trains one",
    "--save": "checkpoints go below --run-dir",
    "--load": "checkpoints go below --run-dir",
    "--print-config": "python -m fixedcode_megatron.pretrain has it",
    "--count-parameters": "python -m fixedcode_megatron.pretrain has it",
}


def plan_jobs(run_dir: str, extra: Sequence[str]) -> list[Job]:
    """Resolve the command line of each interface.

    Parameters
    ----------
    run_dir
        Folder of everything that the quickstart writes.
    extra
        The user's flags for training, put after ours, so that they win.

    Raises
    ------
    UserError
        With every mistake in the flags.
    """
    for flag in (word.split("=")[0] for word in extra):
        if flag in _OURS:
            raise UserError(f"{flag} has no place in the quickstart: {_OURS[flag]}")
    jobs = [_job(interface, Path(run_dir), extra) for interface in INTERFACES]
    if jobs[0].cfg.training.train_iters is None:
        raise UserError("the quickstart counts in iterations: give --train-iters, not samples")
    if not jobs[0].cfg.training.eval_iters:
        raise UserError("--eval-iters 0 leaves nothing to compare: give 1 or more")
    return jobs


def _job(interface: str, run_dir: Path, extra: Sequence[str]) -> Job:
    from fixedcode_megatron.config import parse_args

    folder = run_dir / interface
    checkpoints = str(folder / "checkpoints")
    flags = ["--config", shown(PRESET), "--input-interface", interface]
    flags += ["--data-path", str(run_dir / "data" / "corpus_text_document")]
    flags += ["--tokenizer-model", str(run_dir / "data" / "tokenizer")]
    flags += ["--run-dir", str(folder), "--save", checkpoints, "--load", checkpoints]
    flags += ["--save-interval", "50", "--keep-last-checkpoints", "2"]
    flags += extra
    return Job(interface, folder, tuple(flags), parse_args(flags))


def uses_own_data(job: Job, run_dir: str) -> bool:
    """Whether the data is the one that the quickstart prepares (not one the user named)."""
    return job.cfg.data.data_path == [str(Path(run_dir) / "data" / "corpus_text_document")]
