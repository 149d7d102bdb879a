"""Saving and loading a run through megatron.core.dist_checkpointing (format torch_dist).

Everything that a run is made of is inside: weights, optimizer and schedule, `TrainState`, random
states of each rank, the resolved configuration, the token code, the tokenizer's fingerprint,
versions.
"""

from __future__ import annotations

import inspect
import logging
import platform
import random
import shutil
from pathlib import Path
from typing import Any

import megatron.core
import numpy as np
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from torch.distributed.checkpoint.api import CheckpointException

from fixedcode_megatron import __version__
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.training import checkpoint_files as files
from fixedcode_megatron.training.checkpoint_checks import (
    check_inputs,
    check_model,
    check_optimizer_kind,
)
from fixedcode_megatron.training.trainer import Trainer

logger = logging.getLogger(__name__)

_SHARDING = "fully_reshardable"  # the optimizer layout that loads at any other parallel layout


def save_checkpoint(trainer: Trainer, root: Path, *, tokenizer_fingerprint: str | None) -> Path:
    """Write the checkpoint of the current iteration; every rank must call it.

    The folder gets its final name, and the tracker file moves, when all ranks have written.

    Raises
    ------
    UserError
        If it could not be written; the checkpoints before it are as they were.
    """
    try:
        return _save(trainer, root, tokenizer_fingerprint)
    except (OSError, CheckpointException, CheckpointingException) as error:
        raise UserError(_why_not_saved(root, trainer.state.iteration, error)) from error


def _why_not_saved(root: Path, iteration: int, error: BaseException) -> str:
    causes = [str(error)]
    if isinstance(error, CheckpointException):  # torch's, with each rank's own exception inside
        causes = sorted({str(cause) for cause, _ in error.failures.values()})
    if dist.get_rank() == 0:
        shutil.rmtree(files.partial_path(root, iteration), ignore_errors=True)
    try:
        room = f"{shutil.disk_usage(root).free / 2**30:.1f} GiB are free there"
        newest = f"the newest whole one is of iteration {files.read_tracker(root)}"
    except OSError:
        room, newest = "the folder cannot be read", "see what is left of it"
    return (
        f"the checkpoint of iteration {iteration} could not be written to {root}: "
        f"{'; '.join(causes) or 'see the other ranks'} ({room}); {newest}. Make room or choose "
        "another --save, then start again"
    )


def _save(trainer: Trainer, root: Path, tokenizer_fingerprint: str | None) -> Path:
    iteration = trainer.state.iteration
    if dist.get_rank() == 0:
        files.prepare(root, iteration)
    dist.barrier()
    with trainer.parameters_gathered():
        state = _sharded_state(trainer, loading=False)
        state |= _common_state(trainer, tokenizer_fingerprint)
        _write(state, files.partial_path(root, iteration))
    dist.barrier()
    if dist.get_rank() == 0:
        partial = files.partial_path(root, iteration)
        (partial / "config.yaml").write_text(trainer.cfg.to_yaml(), encoding="utf-8")
        files.publish(root, iteration)
        files.remove_old(root, trainer.cfg.checkpoint.keep_last_checkpoints, newest=iteration)
    dist.barrier()
    return files.checkpoint_path(root, iteration)


def load_checkpoint(
    trainer: Trainer, path: Path, *, tokenizer_fingerprint: str | None = None
) -> None:
    """Bring back a run from the checkpoint in `path`, at this or any other parallel layout.

    Raises
    ------
    UserError
        If the checkpoint was made with another token code or tokenizer, or its tensors do not fit
        the model that the flags describe.
    """
    options = trainer.cfg.checkpoint
    common = dist_checkpointing.load_common_state_dict(str(path))
    check_inputs(trainer, common, path, tokenizer_fingerprint)
    check_model(trainer.cfg, common["config"], path)
    same_layout = common["layout"] == _layout()
    with_optimizer = not (options.finetune or options.no_load_optim or common["optimizer_absent"])
    with_rng = not (options.finetune or options.no_load_rng or common["rng_absent"])
    if with_optimizer:
        check_optimizer_kind(trainer.cfg, common["config"], path)
    if with_rng and not same_layout:
        logger.warning(
            "%s was saved at layout %s, this run has %s: dropout goes on with fresh random states",
            path,
            common["layout"],
            _layout(),
        )
    wanted = _sharded_state(
        trainer, loading=True, optimizer=with_optimizer, rng=with_rng and same_layout
    )
    try:
        loaded = dist_checkpointing.load(wanted, str(path))
    except CheckpointingException as error:
        raise UserError(
            f"{path} does not fit the model that the flags describe: {error}"
        ) from error
    except CheckpointException as error:  # torch's, with each rank's own exception inside
        causes = {str(cause) for cause, _ in error.failures.values()}
        raise UserError(f"{path} could not be loaded: {'; '.join(sorted(causes))}") from error
    for name, model in _named_chunks(trainer):
        model.load_state_dict(loaded[name])
    if not options.finetune:
        trainer.state.load_dict(common["train_state"])
    if with_optimizer:
        _load_optimizer(trainer, loaded["optimizer"], common["opt_param_scheduler"])
    else:
        trainer.state.optimizer_steps = 0
        trainer.optimizer.reload_model_params()
        trainer.scheduler.step(increment=trainer.state.consumed_samples)
    if with_rng and same_layout:
        _set_rng_state(loaded["rng_state"])


def _named_chunks(trainer: Trainer) -> list[tuple[str, Any]]:
    """The model chunks under Megatron's checkpoint keys: `model`, or `model0`, `model1`, ..."""
    chunks = [model.module for model in trainer.models]
    if len(chunks) == 1:
        return [("model", chunks[0])]
    return [(f"model{index}", chunk) for index, chunk in enumerate(chunks)]


def _content_metadata() -> dict[str, Any]:
    """What megatron-core records about the layout of a checkpoint's content."""
    return {
        "distrib_optim_sharding_type": _SHARDING,
        "distrib_optim_fully_reshardable_mem_efficient": False,
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
    }


def _sharded_state(
    trainer: Trainer, *, loading: bool, optimizer: bool | None = None, rng: bool | None = None
) -> dict[str, Any]:
    options = trainer.cfg.checkpoint
    metadata = _content_metadata() | {
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)
    }
    state: dict[str, Any] = {
        name: chunk.sharded_state_dict(metadata=metadata) for name, chunk in _named_chunks(trainer)
    }
    if optimizer if optimizer is not None else not options.no_save_optim:
        state["optimizer"] = trainer.optimizer.sharded_state_dict(
            dict(state), is_loading=loading, metadata=metadata
        )
    if rng if rng is not None else not options.no_save_rng:
        state["rng_state"] = _rng_object()
    return state


def _common_state(trainer: Trainer, tokenizer_fingerprint: str | None) -> dict[str, Any]:
    """What is the same on every rank."""
    options = trainer.cfg.checkpoint
    return {
        "iteration": trainer.state.iteration,
        "train_state": trainer.state.to_dict(),
        "opt_param_scheduler": trainer.scheduler.state_dict(),
        "optimizer_absent": options.no_save_optim,
        "rng_absent": options.no_save_rng,
        "layout": _layout(),
        "config": trainer.cfg.to_dict(),
        "input_interface": trainer.cfg.input.input_interface,
        "token_code": None if trainer.code is None else trainer.code.to_json(),
        "tokenizer_fingerprint": tokenizer_fingerprint,
        "versions": {
            "fixedcode-megatron": __version__,
            "megatron-core": megatron.core.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
    }


def _layout() -> dict[str, int]:
    return {
        "tensor": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline": parallel_state.get_pipeline_model_parallel_world_size(),
        "data": parallel_state.get_data_parallel_world_size(with_context_parallel=True),
    }


def _write(state: dict[str, Any], path: Path) -> None:
    try:
        strategy = get_default_save_sharded_strategy("torch_dist", 1)
    except TypeError:  # megatron-core 0.17 dropped the version argument
        strategy = get_default_save_sharded_strategy("torch_dist")
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    options: dict[str, Any] = {}
    if "async_strategy" in inspect.signature(dist_checkpointing.save).parameters:
        options["async_strategy"] = "mcore"
    dist_checkpointing.save(
        state,
        str(path),
        sharded_strategy=FullyParallelSaveStrategyWrapper(strategy, group),
        content_metadata=_content_metadata(),
        **options,
    )


def _load_optimizer(trainer: Trainer, state: Any, schedule: dict[str, Any]) -> None:
    with torch.no_grad():  # FP32 weights are their own main weights: leaves, copied into in place
        trainer.optimizer.load_state_dict(state)
    # The step count is saved by rank 0 alone, which has none where its stage owns no parameter.
    steps = trainer.state.optimizer_steps
    for optimizer in getattr(trainer.optimizer, "chained_optimizers", [trainer.optimizer]):
        for group in optimizer.optimizer.param_groups:
            if group["params"] and "betas" in group:
                group["step"] = steps
    try:
        trainer.scheduler.load_state_dict(schedule)
    except AssertionError as error:
        raise UserError(
            f"the schedule of the checkpoint differs from the flags: {error}; keep it with "
            "--use-checkpoint-opt-param-scheduler or change it with --override-opt-param-scheduler"
        ) from error


def _rng_object() -> ShardedObject:
    """This rank's random states, as one cell of a [pipeline, tensor, data] grid."""
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(),
        "tracker": get_cuda_rng_tracker().get_states(),
    }
    place = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_data_parallel_rank(with_context_parallel=True),
    )
    return ShardedObject("rng_state", state, tuple(_layout_sizes()), place, replica_id=0)


def _layout_sizes() -> list[int]:
    layout = _layout()
    return [layout["pipeline"], layout["tensor"], layout["data"]]


def _set_rng_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state(state["cuda"])
    get_cuda_rng_tracker().set_states(state["tracker"])
