"""Where figures go besides the log and the run folder: TensorBoard and Weights & Biases."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fixedcode_megatron.training.checkpoint_files import write_atomically

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig

logger = logging.getLogger(__name__)

WANDB_ID_FILE = "wandb_id.txt"


def open_tensorboard(cfg: RunConfig, continue_from: int | None) -> Any:
    """A SummaryWriter for `--tensorboard-dir`, or None.

    Later steps of an earlier run than `continue_from`, which this one repeats, are not shown.
    """
    if cfg.logging.tensorboard_dir is None:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        logger.warning("--tensorboard-dir: tensorboard is not installed (pip install tensorboard)")
        return None
    purge = None if continue_from is None else continue_from + 1
    return SummaryWriter(cfg.logging.tensorboard_dir, purge_step=purge)


def open_wandb(cfg: RunConfig, run_dir: Path, continue_from: int | None) -> Any:
    """The W&B run for `--wandb-project`, or None.

    Its id is kept in the run folder, so that a relaunch goes on with the same run.
    """
    if cfg.logging.wandb_project is None:
        return None
    try:
        import wandb
    except ImportError:
        logger.warning("--wandb-project: wandb is not installed (pip install wandb)")
        return None
    return wandb.init(
        project=cfg.logging.wandb_project,
        name=cfg.logging.wandb_exp_name,
        entity=cfg.logging.wandb_entity,
        config=cfg.to_dict(),
        dir=str(run_dir),
        id=_wandb_id(run_dir, new=continue_from == 0),
        resume="allow",
    )


def _wandb_id(run_dir: Path, *, new: bool) -> str:
    """The id of the run in this folder; a run that starts from scratch gets another one."""
    path = run_dir / WANDB_ID_FILE
    if new or not path.exists():
        write_atomically(path, uuid.uuid4().hex[:8] + "\n")
    return path.read_text().strip()
