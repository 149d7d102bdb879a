"""What a checkpoint holds: everything that a run is made of.

Weights, optimizer and schedule, `TrainState` (which is also the position in the data), random
states of each rank, the resolved configuration, the token code, the tokenizer's fingerprint,
versions.
"""

from __future__ import annotations

import platform
import random
from typing import Any

import megatron.core
import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from fixedcode_megatron import __version__
from fixedcode_megatron.training import optimizer_padding
from fixedcode_megatron.training.trainer import Trainer

# Megatron-LM reads a lower or missing number as weights whose QKV rows it must permute.
MEGATRON_VERSION = 3.0


def content_metadata() -> dict[str, Any]:
    """What megatron-core records about the layout of a checkpoint's content.

    Of its layouts of optimizer state, `fully_reshardable` alone loads at any parallel layout.
    """
    return {
        "distrib_optim_sharding_type": "fully_reshardable",
        "distrib_optim_fully_reshardable_mem_efficient": False,
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
    }


def named_chunks(trainer: Trainer) -> list[tuple[str, Any]]:
    """The model chunks under Megatron's checkpoint keys: `model`, or `model0`, `model1`, ..."""
    chunks = [model.module for model in trainer.models]
    if len(chunks) == 1:
        return [("model", chunks[0])]
    return [(f"model{index}", chunk) for index, chunk in enumerate(chunks)]


def sharded_state(trainer: Trainer, *, loading: bool, optimizer: bool, rng: bool) -> dict[str, Any]:
    """What is spread over the ranks, as megatron-core's sharded tensors and objects."""
    metadata = content_metadata() | {
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)
    }
    state: dict[str, Any] = {
        name: chunk.sharded_state_dict(metadata=metadata) for name, chunk in named_chunks(trainer)
    }
    if optimizer:
        optimizer_padding.install()
        state["optimizer"] = trainer.optimizer.sharded_state_dict(
            dict(state), is_loading=loading, metadata=metadata
        )
    if rng:
        state["rng_state"] = _rng_object()
    return state


def common_state(trainer: Trainer, tokenizer_fingerprint: str | None) -> dict[str, Any]:
    """What is the same on every rank."""
    options = trainer.cfg.checkpoint
    return {
        "checkpoint_version": MEGATRON_VERSION,
        "iteration": trainer.state.iteration,
        "train_state": trainer.state.to_dict(),
        "opt_param_scheduler": trainer.scheduler.state_dict(),
        "optimizer_absent": options.no_save_optim,
        "rng_absent": options.no_save_rng,
        "layout": layout(),
        "config": trainer.cfg.to_dict(),
        # Resolved on this machine; it decides which GELU the model computes.
        "bias_activation_fusion": trainer.config.bias_activation_fusion,
        "input_interface": trainer.cfg.input.input_interface,
        "vocab_size": trainer.vocabulary.size,
        "token_code": None if trainer.code is None else trainer.code.to_json(),
        "tokenizer_fingerprint": tokenizer_fingerprint,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Releases of what writes a checkpoint."""
    return {
        "fixedcode-megatron": __version__,
        "megatron-core": megatron.core.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def layout() -> dict[str, int]:
    """Sizes of the parallel groups that random states belong to."""
    return {
        "tensor": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline": parallel_state.get_pipeline_model_parallel_world_size(),
        "data": parallel_state.get_data_parallel_world_size(with_context_parallel=True),
    }


def _rng_object() -> ShardedObject:
    """This rank's random states, as one cell of a [pipeline, tensor, data] grid."""
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(),
        "tracker": plain_states(get_cuda_rng_tracker().get_states()),
    }
    sizes = layout()
    place = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_data_parallel_rank(with_context_parallel=True),
    )
    grid = (sizes["pipeline"], sizes["tensor"], sizes["data"])
    return ShardedObject("rng_state", state, grid, place, replica_id=0)


def set_rng_state(state: dict[str, Any]) -> None:
    """Bring this rank's random states back."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state(state["cuda"])
    tracker = get_cuda_rng_tracker()
    tracker.set_states(restored_states(tracker.get_states(), state["tracker"]))


def plain_states(states: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Random states as tensors, whether the tracker keeps tensors or (for CUDA graphs) generators.

    So a run can go on with graphs after one without, and the other way round.
    """
    return {
        name: state.get_state() if isinstance(state, torch.Generator) else state
        for name, state in states.items()
    }


def restored_states(
    current: dict[str, Any], saved: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor | torch.Generator]:
    """The saved random states in the form that the tracker keeps; its generators stay the same."""
    restored: dict[str, torch.Tensor | torch.Generator] = {}
    for name, state in plain_states(saved).items():
        generator = current.get(name)
        if isinstance(generator, torch.Generator):
            generator.set_state(state)
            restored[name] = generator
        else:
            restored[name] = state
    return restored
