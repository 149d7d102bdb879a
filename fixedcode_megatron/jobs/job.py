"""A training to be done: its folder, its command line and what that resolves to."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fixedcode_megatron.errors import UserError

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig

CONFIG_FILE = "config.yaml"
PROGRAM = "fixedcode_megatron.pretrain"


@dataclass(frozen=True)
class Job:
    """One model to train.

    Attributes
    ----------
    folder
        What it leaves behind: config.yaml, metrics.jsonl, train.log, checkpoints/.
    flags
        Command line of `fixedcode_megatron.pretrain`.
    cfg
        What these flags resolve to.
    processes
        Ranks; more than one are started by torchrun.
    """

    name: str
    folder: Path
    flags: tuple[str, ...]
    cfg: RunConfig
    processes: int = 1

    @property
    def command(self) -> list[str]:
        """The program that trains this model."""
        launcher: list[str] = []
        if self.processes > 1:
            launcher = ["-m", "torch.distributed.run", "--standalone"]
            launcher += ["--nproc-per-node", str(self.processes)]
        return [sys.executable, *launcher, "-m", PROGRAM, *self.flags]

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


def changed_settings(job: Job, but: Collection[str] = ()) -> list[str]:
    """Each setting in which a job's folder was trained otherwise, with both values.

    Parameters
    ----------
    but
        Names of settings that may differ.
    """
    saved = job.folder / CONFIG_FILE
    if not saved.is_file():
        return []
    before: dict[str, Any] = yaml.safe_load(saved.read_text(encoding="utf-8")) or {}
    # Through YAML and back, so that tuples and types compare as they are written.
    now: dict[str, Any] = yaml.safe_load(job.cfg.to_yaml())
    return [
        f"--{name.replace('_', '-')} {before[name]} then, {value} now"
        for name, value in now.items()
        if name in before and before[name] != value and name not in but
    ]


def refuse_changed_flags(job: Job) -> None:
    """Refuse to continue a run, or to take over its result, under other settings.

    Raises
    ------
    UserError
        Naming each setting that differs from the folder's config.yaml, with both values.
    """
    if changed := changed_settings(job):
        raise UserError(
            f"{job.folder} was trained with other settings ({'; '.join(changed)}): give the "
            f"same flags, or another --run-dir, or delete {job.folder.parent} to start anew"
        )


def shown(path: Path) -> str:
    """The path from here where that is shorter, for commands that people read and copy."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
