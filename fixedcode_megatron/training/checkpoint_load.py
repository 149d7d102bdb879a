"""Loading a checkpoint at this or any other parallel layout: to go on, or its weights alone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import (
    ShardedBase,
    ShardedObject,
    ShardedTensorFactory,
)
from megatron.core.dist_checkpointing.serialization import load_sharded_metadata
from torch.distributed.checkpoint.api import CheckpointException

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.training import warm_start
from fixedcode_megatron.training.checkpoint_checks import (
    check_inputs,
    check_model,
    check_optimizer_kind,
)
from fixedcode_megatron.training.checkpoint_state import (
    layout,
    named_chunks,
    set_rng_state,
    sharded_state,
)
from fixedcode_megatron.training.trainer import Trainer

logger = logging.getLogger(__name__)

_EXTRA_STATE = "_extra_state"  # FP8 scaling of Transformer Engine's layers; torch-native have none
_NOT_WEIGHTS = ("optimizer.", "rng_state", "rerun_state_machine", "common_state")


def load_checkpoint(
    trainer: Trainer,
    path: Path,
    *,
    weights_only: bool = False,
    tokenizer_fingerprint: str | None = None,
) -> None:
    """Bring back a run from the checkpoint in `path`.

    Parameters
    ----------
    weights_only
        Start a new run at iteration 0 with the checkpoint's weights, which may be Megatron-LM's.

    Raises
    ------
    UserError
        If the checkpoint was made with another token code or tokenizer, or its tensors do not fit
        the model that the flags describe.
    """
    common = read_common_state(path)
    if weights_only:
        common = warm_start.completed(common, path)
    same_inputs = check_inputs(trainer, common, path, tokenizer_fingerprint, weights_only)
    check_model(trainer.cfg, common["config"], path, weights_only)
    if weights_only:
        _load_weights(trainer, path, with_input=same_inputs)
    else:
        _resume(trainer, path, common)


def read_common_state(path: Path) -> dict[str, Any]:
    """What a checkpoint holds that is the same on every rank.

    Raises
    ------
    UserError
        If the file is damaged.
    """
    try:
        return dist_checkpointing.load_common_state_dict(str(path))
    except CheckpointException as error:
        raise _not_loaded(path, error) from error
    except Exception as error:  # whatever unpickling raises
        raise UserError(f"{path} could not be loaded: {error}") from error


def _not_loaded(path: Path, error: CheckpointException) -> UserError:
    """One line of torch's exception, which holds each rank's own with its traceback."""
    causes = {str(cause) for cause, _ in error.failures.values()}
    return UserError(f"{path} could not be loaded: {'; '.join(sorted(causes))}")


def _load_weights(trainer: Trainer, path: Path, *, with_input: bool) -> None:
    wanted = sharded_state(trainer, loading=True, optimizer=False, rng=False)
    if not with_input:
        for name, _ in named_chunks(trainer):
            wanted[name] = warm_start.without_input(wanted[name])
    loaded = _load(trainer, wanted, path, may_hold_input=not with_input)
    _set_weights(trainer, loaded)
    _start_optimizer(trainer)


def _resume(trainer: Trainer, path: Path, common: dict[str, Any]) -> None:
    options = trainer.cfg.checkpoint
    same_layout = common["layout"] == layout()
    with_optimizer = not (options.no_load_optim or common["optimizer_absent"])
    with_rng = not (options.no_load_rng or common["rng_absent"])
    if with_optimizer:
        check_optimizer_kind(trainer.cfg, common["config"], path)
    if with_rng and not same_layout:
        logger.warning(
            "%s was saved at layout %s, this run has %s: dropout goes on with fresh random states",
            path,
            common["layout"],
            layout(),
        )
    wanted = sharded_state(
        trainer, loading=True, optimizer=with_optimizer, rng=with_rng and same_layout
    )
    loaded = _load(trainer, wanted, path)
    _set_weights(trainer, loaded)
    trainer.state.load_dict(common["train_state"])
    if with_optimizer:
        _load_optimizer(trainer, loaded["optimizer"], common["opt_param_scheduler"])
    else:
        _start_optimizer(trainer)
    if with_rng and same_layout:
        set_rng_state(loaded["rng_state"])


def _load(
    trainer: Trainer, wanted: dict[str, Any], path: Path, *, may_hold_input: bool = False
) -> dict[str, Any]:
    """Read `wanted` from `path`; refuses weights that one side has and the other lacks."""
    try:
        present = load_sharded_metadata(str(path))
        for name, _ in named_chunks(trainer):
            wanted[name] = _without_absent_extra_states(wanted[name], present)
        held = {value.key for value in present.values() if is_weight(value.key)}
        if may_hold_input:
            held = {key for key in held if not warm_start.is_input(key)}
        _must_be_equal(held, wanted, path)
        return dist_checkpointing.load(wanted, str(path))
    except CheckpointingException as error:
        raise UserError(
            f"{path} does not fit the model that the flags describe: {error}"
        ) from error
    except CheckpointException as error:
        raise _not_loaded(path, error) from error


def is_weight(key: str) -> bool:
    """Whether a checkpoint's key is a weight's, not the optimizer's or the run's state."""
    return not key.startswith(_NOT_WEIGHTS) and _EXTRA_STATE not in key


def _without_absent_extra_states(state: dict[str, Any], present: dict[str, Any]) -> dict[str, Any]:
    """Ask for no FP8 state that the checkpoint lacks: one of torch-native layers, or of BF16."""
    return {
        name: value
        for name, value in state.items()
        if not isinstance(value, ShardedObject)
        or _EXTRA_STATE not in value.key
        or value.unique_key in present
    }


def _weights(state: Any) -> set[str]:
    """Keys of the weights in a sharded state."""
    keys: set[str] = set()
    for value in nested_values(state):
        if isinstance(value, ShardedBase) and is_weight(value.key):
            is_factory = isinstance(value, ShardedTensorFactory)
            keys |= _weights([value.build()]) if is_factory else {value.key}
    return keys


def _must_be_equal(held: set[str], wanted: dict[str, Any], path: Path) -> None:
    """Refuse weights that only the checkpoint or only the model (of all ranks together) has."""
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, _weights(wanted))
    asked: set[str] = set().union(*of_ranks)
    for keys, what in ((asked - held, "has no"), (held - asked, "holds, and this model does not,")):
        if keys:
            raise UserError(
                f"{path} does not fit the model that the flags describe: it {what} "
                f"{', '.join(sorted(keys))}"
            )


def _set_weights(trainer: Trainer, loaded: dict[str, Any]) -> None:
    """Take over what was loaded; what was not asked for stays as it is."""
    for name, chunk in named_chunks(trainer):
        chunk.load_state_dict(chunk.state_dict() | loaded[name])


def _start_optimizer(trainer: Trainer) -> None:
    """Begin with new moments, from the weights as loaded; the schedule is where the state is."""
    trainer.state.optimizer_steps = 0
    trainer.optimizer.reload_model_params()
    trainer.scheduler.step(increment=trainer.state.consumed_samples)


def _load_optimizer(trainer: Trainer, state: Any, schedule: dict[str, Any]) -> None:
    scheduler = trainer.scheduler
    # Each group of parameters has bounds of its own, which the schedule runs between, and by which
    # newer releases of megatron-core find the group in the checkpoint.
    _replace_bounds(_saved_groups(state), schedule, scheduler.state_dict())
    with torch.no_grad():  # FP32 weights are their own main weights: leaves, copied into in place
        trainer.optimizer.load_state_dict(state)
    # The step count is saved by rank 0 alone, which has none where its stage owns no parameter.
    steps = trainer.state.optimizer_steps
    for optimizer in getattr(trainer.optimizer, "chained_optimizers", [trainer.optimizer]):
        for group in optimizer.optimizer.param_groups:
            if group["params"] and "betas" in group:
                group["step"] = steps
    own = scheduler.state_dict()
    try:
        scheduler.load_state_dict(schedule)
    except AssertionError as error:
        raise UserError(
            f"the schedule of the checkpoint differs from the flags: {error}; keep it with "
            "--use-checkpoint-opt-param-scheduler or change it with --override-opt-param-scheduler"
        ) from error
    _replace_bounds(trainer.optimizer.param_groups, own, scheduler.state_dict())
    scheduler.step(increment=0)  # anew, between these bounds


def _saved_groups(state: Any) -> list[dict[str, Any]]:
    """The groups of parameters in an optimizer's state, however deep megatron-core puts them."""
    if not isinstance(state, dict):
        return []
    groups = list(state.get("param_groups", ()))
    return groups + [group for value in state.values() for group in _saved_groups(value)]


def _replace_bounds(groups: list[dict[str, Any]], old: dict[str, Any], new: dict[str, Any]) -> None:
    """Give groups that have the bounds of the schedule `old` those of `new`; others keep theirs."""
    for group in groups:
        for name in ("max_lr", "min_lr"):
            if name in group and group[name] == old[name]:
                group[name] = new[name]
