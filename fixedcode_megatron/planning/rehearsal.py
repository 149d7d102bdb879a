"""The real program, built and run as one rank of a large job: without its memory or its peers.

Tensors are fake (shapes without data) and so is the process group, so that one CPU core builds any
rank of 1,024 in seconds. What the model, DDP, the optimizer and megatron-core's schedules allocate
and send is counted, not computed: this is what the planner's formulas are checked against.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from fixedcode_megatron import cpu_platform
from fixedcode_megatron import runtime as run_time
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.planning.recorder import Recorder
from fixedcode_megatron.planning.traffic import Traffic
from fixedcode_megatron.training.memory import held_bytes

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig
    from fixedcode_megatron.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What one rank holds and sends.

    Attributes
    ----------
    shapes
        Its parameters by name, model chunks one after the other.
    parameter_bytes, gradient_bytes
        Size of the buffers that hold parameters and gradients, with their padding.
    optimizer_bytes
        FP32 main parameters and Adam's moments after the first step.
    traffic
        Collectives of one training step.
    activation_bytes
        Most memory held at once, besides all that, between the step's start and the update.
    """

    shapes: list[tuple[str, tuple[int, ...]]]
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    traffic: Traffic
    activation_bytes: int


def rehearse(cfg: RunConfig, *, world_size: int, rank: int = 0) -> Rehearsal:
    """Build rank `rank` of `world_size` and take one step on fake tensors.

    Parameters
    ----------
    cfg
        A configuration that was parsed for `world_size` ranks; `vocab_size` must be given.

    Raises
    ------
    UserError
        For context parallelism, whose attention takes no fake tensors.

    Notes
    -----
    Must not be called while a process group exists. On a GPU machine hide the GPUs: the layers are
    the torch-native ones, for Transformer Engine's kernels accept no fake tensors.
    """
    assert not dist.is_initialized(), "a rehearsal needs a process without a process group"
    if cfg.transformer.context_parallel_size > 1:
        raise UserError(
            f"--context-parallel-size {cfg.transformer.context_parallel_size} cannot be rehearsed; "
            "leave out --rehearse, or use --context-parallel-size 1"
        )
    cpu_platform.install()
    cfg = copy.deepcopy(cfg)
    cfg.set("perform_initialization", False)
    with _fake_job(cfg, world_size, rank) as runtime:
        trainer = _build(cfg, runtime)
        parameter_bytes, gradient_bytes, _ = held_bytes(trainer)
        shapes = [(n, tuple(p.shape)) for model in trainer.models for n, p in _named(model)]
        with Recorder():
            _ask_once(trainer)
        recorder = Recorder()
        with recorder:
            _step(trainer, recorder)
        return Rehearsal(
            shapes=shapes,
            parameter_bytes=parameter_bytes,
            gradient_bytes=gradient_bytes,
            optimizer_bytes=held_bytes(trainer)[2],
            traffic=recorder.traffic,
            activation_bytes=recorder.peak,
        )


def _build(cfg: RunConfig, runtime: run_time.Runtime) -> Trainer:
    from fixedcode_megatron.model.gpt import run_vocabulary
    from fixedcode_megatron.training.trainer import build_trainer

    assert cfg.model.vocab_size is not None
    return build_trainer(cfg, runtime, run_vocabulary(cfg, cfg.model.vocab_size))


def _step(trainer: Trainer, recorder: Recorder) -> None:
    """`training.step.train_step`, with the memory's peak read before the update."""
    from megatron.core.num_microbatches_calculator import get_num_microbatches

    from fixedcode_megatron.training.step import run_microbatches

    for model in trainer.models:
        model.zero_grad_buffer()
    trainer.optimizer.zero_grad()
    run_microbatches(
        trainer,
        [_batches(trainer.cfg) for _ in trainer.models],
        num_microbatches=get_num_microbatches(),
    )
    recorder.watching = False
    trainer.optimizer.step()


def _ask_once(trainer: Trainer) -> None:
    """Let the optimizer ask all ranks what it asks in a job's first step only.

    Newer releases of megatron-core find out whether any parameter's norm is clipped separately.
    """
    from megatron.core.optimizer import optimizer as mcore_optimizer

    for name in getattr(mcore_optimizer, "SEPARATE_GRAD_NORM_GROUPS", ()):
        for part in (trainer.optimizer, *trainer.optimizer.chained_optimizers):
            part.has_grad_norm_group(name)


def _batches(cfg: RunConfig) -> Iterator[dict[str, Tensor]]:
    shape = cfg.training.micro_batch_size, cfg.model.seq_length
    ids, mask = torch.zeros(shape, dtype=torch.long), torch.ones(shape)
    while True:
        yield {"tokens": ids, "labels": ids, "position_ids": ids, "loss_mask": mask}


def _named(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        yield name.removeprefix("module.").removeprefix("module."), parameter


@contextlib.contextmanager
def _fake_job(cfg: RunConfig, world_size: int, rank: int) -> Iterator[run_time.Runtime]:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    runtime = run_time.Runtime(
        device=torch.device("cpu"), backend="fake", rank=rank, world_size=world_size, local_rank=0
    )
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        run_time._init_model_parallel(cfg)
        run_time._seed(cfg)
        with contextlib.ExitStack() as stack:
            for owner, name, replacement in _replacements():
                stack.enter_context(_replaced(owner, name, replacement))
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            yield runtime
    finally:
        run_time.shutdown()


def _replacements() -> list[tuple[Any, str, Callable[..., Any]]]:
    """What cannot run without data: exchanges of Python objects, random states, casts in place."""
    import megatron.core.optimizer.clip_grads as clip_grads
    import megatron.core.tensor_parallel.random as mcore_random

    def all_gather_object(results: list[Any], value: Any, group: Any = None) -> None:
        results[:] = [value] * len(results)

    def no_fork(*_args: Any, **_kwargs: Any) -> Any:
        return contextlib.nullcontext()

    return [
        (dist, "all_gather_object", all_gather_object),
        (clip_grads, "multi_tensor_applier", lambda *_args: (torch.zeros(1), None)),
        (mcore_random.CudaRNGStatesTracker, "fork", no_fork),
        (mcore_random, "_get_all_rng_states", lambda: (None, None, None)),
        (mcore_random, "_set_all_rng_states", lambda *_args: None),
        (mcore_random, "_fork_rng", contextlib.nullcontext),
        # Everything is built on its device and in its type already.
        (torch.nn.Module, "_apply", lambda module, *_args, **_kwargs: module),
    ]


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
