"""Folders that cannot be written to, and disks that are too small, found before training starts."""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.training.memory import moment_bytes

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig
    from fixedcode_megatron.training.trainer import Trainer

GIB = 2**30


def check_folders(cfg: RunConfig) -> None:
    """Write a file to every folder of the run, on the rank that will write there.

    Raises
    ------
    UserError
        On every rank, naming all folders that cannot be written to.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    folders: list[tuple[str, str | None]] = []
    if rank == 0:
        folders += [("--data-cache-path", cfg.data.data_cache_path)]
    if rank == last:
        folders += [("--run-dir", cfg.logging.run_dir)]
        folders += [("--tensorboard-dir", cfg.logging.tensorboard_dir)]
    problems = [text for flag, path in folders if path and (text := unwritable(flag, Path(path)))]
    found: list[Any] = [None] * (last + 1)
    dist.all_gather_object(found, problems)
    if any(found):
        raise UserError("; ".join(text for texts in found for text in texts))


def unwritable(flag: str, folder: Path) -> str | None:
    """Why no file can be written to a folder, which is made if it is not there; None if one can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * 4096)
    except OSError as error:
        return f"{flag} {folder} cannot be written to: {error}"
    return None


def check_space(trainer: Trainer) -> str | None:
    """Compare what the checkpoints will take with what is free where they go.

    Returns
    -------
    str or None
        A warning, on rank 0, if the run's checkpoints together will not fit.

    Raises
    ------
    UserError
        On every rank, if not even one fits.
    """
    cfg = trainer.cfg
    if cfg.checkpoint.save is None or cfg.training.skip_train:
        return None
    size = checkpoint_bytes(trainer)
    free = torch.zeros((), dtype=torch.int64, device=trainer.runtime.device)
    if trainer.runtime.rank == 0:
        free += shutil.disk_usage(cfg.checkpoint.save).free
    dist.broadcast(free, src=0)
    return space_problem(cfg.checkpoint.save, size, int(free), _number_of_checkpoints(trainer))


def space_problem(folder: str, size: int, free: int, count: int) -> str | None:
    """The warning of `check_space`, or its error, for checkpoints of `size` bytes."""
    sizes = f"a checkpoint takes about {size / GIB:,.3f} GiB, {free / GIB:,.3f} GiB are free"
    if free < size:
        raise UserError(f"--save {folder}: {sizes}; make room, or name another folder")
    if free < size * count:
        return (
            f"--save {folder}: {sizes}, and the run keeps {count} of them: give "
            f"--keep-last-checkpoints {max(1, free // size - 1)} or a larger --save-interval"
        )
    return None


def checkpoint_bytes(trainer: Trainer) -> int:
    """Size of a checkpoint: weights, and FP32 main weights and moments, without padding."""
    cfg, config = trainer.cfg, trainer.config
    sixteen_bit = config.bf16 or config.fp16
    an_element = 2 if sixteen_bit else 4
    if not cfg.checkpoint.no_save_optim:
        main = sixteen_bit or cfg.ddp.use_distributed_optimizer
        an_element += (4 if main else 0) + moment_bytes(cfg.optimizer.optimizer)
    return an_element * number_of_parameters(trainer)


def number_of_parameters(trainer: Trainer) -> int:
    """Trainable parameters of the whole model; every rank must call it."""
    counts = torch.zeros(2, dtype=torch.int64, device=trainer.runtime.device)
    for model in trainer.models:
        for parameter in model.parameters():
            if param_is_not_shared(parameter) and param_is_not_tensor_parallel_duplicate(parameter):
                counts[0 if getattr(parameter, "allreduce", True) else 1] += parameter.numel()
    dense, experts = counts.unbind()
    dist.all_reduce(dense, group=parallel_state.get_model_parallel_group())
    if trainer.config.num_moe_experts:
        group = parallel_state.get_expert_tensor_model_pipeline_parallel_group()
        dist.all_reduce(experts, group=group)
    return int(dense + experts)


def _number_of_checkpoints(trainer: Trainer) -> int:
    """Checkpoints that lie on the disk at once; one more than are kept while it is written."""
    cfg, every = trainer.cfg, trainer.cfg.checkpoint.save_interval
    iterations = cfg.training.train_iters
    if iterations is None:
        assert cfg.training.train_samples is not None and cfg.training.global_batch_size is not None
        iterations = cfg.training.train_samples // cfg.training.global_batch_size
    count = math.ceil(max(1, iterations - trainer.state.iteration) / (every or iterations or 1))
    kept = cfg.checkpoint.keep_last_checkpoints
    return count if kept is None else min(count, kept + 1)
