"""What a quickstart will do: a training job for each interface, resolved before any starts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fixedcode_megatron.errors import UserError

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig

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


@dataclass(frozen=True)
class Job:
    """One model to train.

    Attributes
    ----------
    folder
        Its part of the run folder: config.yaml, metrics.jsonl, train.log, checkpoints/.
    flags
        Command line of `fixedcode_megatron.pretrain`.
    cfg
        What these flags resolve to.
    """

    interface: str
    folder: Path
    flags: tuple[str, ...]
    cfg: RunConfig

    @property
    def command(self) -> list[str]:
        """The program that trains this model."""
        return [sys.executable, "-m", "fixedcode_megatron.pretrain", *self.flags]

    @property
    def command_text(self) -> str:
        """The command as a user would type it."""
        return shlex.join(["python", *self.command[1:]])

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return Path(self.cfg.checkpoint.save or "")

    @property
    def train_iters(self) -> int:
        """Iterations of the whole run."""
        assert self.cfg.training.train_iters is not None
        return self.cfg.training.train_iters


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
    flags = ["--config", _shown(PRESET), "--input-interface", interface]
    flags += ["--data-path", str(run_dir / "data" / "corpus_text_document")]
    flags += ["--tokenizer-model", str(run_dir / "data" / "tokenizer")]
    flags += ["--run-dir", str(folder), "--save", checkpoints, "--load", checkpoints]
    flags += ["--save-interval", "50", "--keep-last-checkpoints", "2"]
    flags += extra
    return Job(interface, folder, tuple(flags), parse_args(flags))


def _shown(path: Path) -> str:
    """The path from here where that is shorter, for commands that people read and copy."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def uses_own_data(job: Job, run_dir: str) -> bool:
    """Whether the data is the one that the quickstart prepares (not one the user named)."""
    return job.cfg.data.data_path == [str(Path(run_dir) / "data" / "corpus_text_document")]


def refuse_changed_flags(job: Job) -> None:
    """Refuse to continue a run, or to take over its result, under other settings.

    Raises
    ------
    UserError
        Naming each setting that differs from the folder's config.yaml, with both values.
    """
    saved = job.folder / "config.yaml"
    if not saved.is_file():
        return
    before: dict[str, Any] = yaml.safe_load(saved.read_text(encoding="utf-8")) or {}
    # Through YAML and back, so that tuples and types compare as they are written.
    now: dict[str, Any] = yaml.safe_load(job.cfg.to_yaml())
    changed = [
        f"--{name.replace('_', '-')} {before[name]} then, {value} now"
        for name, value in now.items()
        if name in before and before[name] != value
    ]
    if changed:
        raise UserError(
            f"{job.folder} was trained with other settings ({'; '.join(changed)}): give the "
            f"same flags, or another --run-dir, or delete {job.folder.parent} to start anew"
        )
