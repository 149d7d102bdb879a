"""`Trainer`: one rank's model, optimizer and schedule, built from the configuration."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.num_microbatches_calculator import (
    destroy_num_microbatches_calculator,
    get_current_running_global_batch_size,
    init_num_microbatches_calculator,
    update_num_microbatches,
)
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.module import Float16Module, MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig

from fixedcode_megatron.codes import TokenCode
from fixedcode_megatron.config.megatron_fields import ddp_config, optimizer_config
from fixedcode_megatron.model.gpt import Vocabulary, build_model
from fixedcode_megatron.training import fused_adam
from fixedcode_megatron.training.flops import ModelShape, model_shape
from fixedcode_megatron.training.guards import UpdateGuard
from fixedcode_megatron.training.phases import Phases
from fixedcode_megatron.training.schedule import build_scheduler
from fixedcode_megatron.training.state import TrainState

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig
    from fixedcode_megatron.runtime import Runtime


@dataclass(kw_only=True)
class Trainer:
    """What a training step works on.

    Attributes
    ----------
    models
        This rank's model chunks, wrapped in DDP (several under interleaved pipelining).
    config
        megatron-core's configuration, with the hooks that its schedules call.
    code
        The token code, or None for interfaces that have none.
    gradients_verified
        Whether a first backward pass has shown that every parameter gets a gradient.
    phases
        What this rank is doing.
    guard
        What stands between the gradients and the update.
    """

    cfg: RunConfig
    runtime: Runtime
    vocabulary: Vocabulary
    models: list[MegatronModule]
    config: TransformerConfig
    code: TokenCode | None
    optimizer: Any
    scheduler: OptimizerParamScheduler
    shape: ModelShape
    state: TrainState = field(default_factory=TrainState)
    gradients_verified: bool = False
    phases: Phases = field(default_factory=Phases)
    guard: UpdateGuard = field(init=False)

    def __post_init__(self) -> None:
        self.guard = UpdateGuard(self)

    @property
    def global_batch_size(self) -> int:
        """Samples of the next iteration: what the ranks really share out."""
        return get_current_running_global_batch_size()

    def set_batch_size(self) -> None:
        """Take the global batch size that the next iteration has (it may ramp up)."""
        update_num_microbatches(self.state.consumed_samples, consistency_check=False)

    @property
    def num_evaluation_microbatches(self) -> int:
        """Micro-batches of an evaluation's iteration: those of the full global batch, always."""
        training = self.cfg.training
        assert training.global_batch_size is not None
        copies = parallel_state.get_data_parallel_world_size()
        return training.global_batch_size // (training.micro_batch_size * copies)

    @property
    def logging_rank(self) -> int:
        """The rank that writes logs: the last one, which holds the loss."""
        return self.runtime.world_size - 1

    @property
    def is_logging_rank(self) -> bool:
        """Whether this rank writes logs."""
        return self.runtime.rank == self.logging_rank

    @contextlib.contextmanager
    def parameters_gathered(self) -> Iterator[None]:
        """Have all parameters up to date outside of training steps.

        With overlapped parameter gathering, DDP's hooks gather them during the next forward pass;
        evaluation and checkpoints gather them at once instead.
        """
        if not self.cfg.ddp.overlap_param_gather:
            yield
            return
        for model in self.models:
            model.disable_forward_pre_hook()
        try:
            yield
        finally:
            for model in self.models:
                model.enable_forward_pre_hook()


def build_trainer(cfg: RunConfig, runtime: Runtime, vocabulary: Vocabulary) -> Trainer:
    """Build model, DDP, optimizer and schedule of this rank."""
    fused_adam.install_if_needed()
    _init_microbatches(cfg, runtime)
    models, config, code = build_model(cfg, vocabulary)
    models = _wrap(cfg, config, models, runtime)
    optimizer = get_megatron_optimizer(optimizer_config(cfg), models, use_gloo_process_groups=False)
    _set_schedule_hooks(cfg, config, models, optimizer)
    return Trainer(
        cfg=cfg,
        runtime=runtime,
        vocabulary=vocabulary,
        models=models,
        config=config,
        code=code,
        optimizer=optimizer,
        scheduler=build_scheduler(cfg, optimizer),
        shape=model_shape(config, vocab_size=vocabulary.size, seq_length=cfg.model.seq_length),
    )


def _init_microbatches(cfg: RunConfig, runtime: Runtime) -> None:
    destroy_num_microbatches_calculator()
    init_num_microbatches_calculator(
        runtime.rank,
        cfg.training.rampup_batch_size,
        cfg.training.global_batch_size,
        cfg.training.micro_batch_size,
        parallel_state.get_data_parallel_world_size(),
        cfg.training.decrease_batch_size_if_needed,
        **_batch_size_steps(cfg),
    )


def _batch_size_steps(cfg: RunConfig) -> dict[str, str]:
    """`--rampup-batch-size` as the list of steps that newer releases of megatron-core take.

    They accept the older argument, too, and ignore it.
    """
    ramp = cfg.training.rampup_batch_size
    argument = "step_batch_size_schedule"
    known = inspect.signature(init_num_microbatches_calculator).parameters
    if ramp is None or argument not in known:
        return {}
    start, increment, samples = ramp
    assert cfg.training.global_batch_size is not None
    steps = (cfg.training.global_batch_size - start) // increment
    sizes = {-(-k * samples // max(1, steps)): start + k * increment for k in range(steps + 1)}
    return {argument: " ".join(f"{after}:{size}" for after, size in sizes.items())}


def _wrap(
    cfg: RunConfig, config: TransformerConfig, models: list[MegatronModule], runtime: Runtime
) -> list[MegatronModule]:
    for model in models:
        model.to(runtime.device)
    if config.bf16 or config.fp16:
        models = [Float16Module(config, model) for model in models]
    options = ddp_config(cfg)
    # Only the first chunk's gradients are worth cutting into buckets: when the others' are
    # complete, nothing is left to overlap their reduction with.
    return [
        DistributedDataParallel(config, options, model, disable_bucketing=chunk > 0)
        for chunk, model in enumerate(models)
    ]


def _set_schedule_hooks(
    cfg: RunConfig, config: TransformerConfig, models: list[MegatronModule], optimizer: Any
) -> None:
    """Give megatron-core's schedules the functions they call around forward and backward."""

    def per_chunk(name: str) -> Any:
        functions = [getattr(model, name) for model in models]
        return functions if len(functions) > 1 else functions[0]

    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if cfg.ddp.overlap_grad_reduce:
        config.no_sync_func = per_chunk("no_sync")
        if cfg.transformer.pipeline_model_parallel_size > 1:
            config.grad_sync_func = per_chunk("start_grad_sync")
    if cfg.ddp.overlap_param_gather and cfg.ddp.align_param_gather:
        config.param_sync_func = per_chunk("start_param_sync")
