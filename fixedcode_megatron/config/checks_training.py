"""Checks of batch sizes, run length, checkpoints and logs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fixedcode_megatron.config import derive
from fixedcode_megatron.config.options import flag_of

if TYPE_CHECKING:
    from fixedcode_megatron.config.sections import CheckpointConfig
    from fixedcode_megatron.config.tree import RunConfig


def missing(cfg: RunConfig) -> list[str]:
    """How long and how fast is nowhere given."""
    problems = []
    training = cfg.training
    if training.train_iters is None and training.train_samples is None and not training.skip_train:
        problems.append("--train-iters or --train-samples: missing; give the length of the run")
    if cfg.optimizer.lr is None:
        problems.append("--lr: missing; give the learning rate, 3e-4 for example")
    return problems


def batches(cfg: RunConfig, world_size: int) -> list[str]:
    """The global batch must split into micro-batches on every rank."""
    training, t = cfg.training, cfg.transformer
    batch, micro = training.global_batch_size, training.micro_batch_size
    copies = derive.data_parallel_size(cfg, world_size)
    assert batch is not None
    share = micro * copies
    if batch % share and not (training.decrease_batch_size_if_needed and batch > share):
        low = max(share, batch - batch % share)
        return [
            f"--global-batch-size {batch}: must be a multiple of --micro-batch-size {micro} * "
            f"{copies} data-parallel ranks = {share} ({batch} % {share} = {batch % share}); use "
            f"{low} or {low + share}"
        ]
    problems = _rampup(cfg, share)
    stages, micro_batches = t.pipeline_model_parallel_size, batch // share
    if (t.virtual_pipeline_model_parallel_size or 1) > 1 and micro_batches % stages:
        problems.append(
            f"--global-batch-size {batch}: virtual pipeline stages need a multiple of {stages} "
            f"micro-batches a rank, found {micro_batches}; use {share * stages} or a multiple of it"
        )
    return problems


def _rampup(cfg: RunConfig, share: int) -> list[str]:
    ramp, batch = cfg.training.rampup_batch_size, cfg.training.global_batch_size
    if ramp is None:
        return []
    assert batch is not None
    given = f"--rampup-batch-size {' '.join(map(str, ramp))}"
    if len(ramp) != 3 or min(ramp[:2]) < 1 or ramp[2] < 0:
        return [f"{given}: takes START INCREMENT SAMPLES, for example {share} {share} 10000"]
    start, increment, _ = ramp
    problems = []
    if cfg.training.train_samples is None:
        problems.append(f"{given}: needs the run's length in --train-samples, not in iterations")
    if start > batch or (batch - start) % increment:
        problems.append(
            f"{given}: --global-batch-size {batch} must be START plus a multiple of INCREMENT"
        )
    if not cfg.training.decrease_batch_size_if_needed and (start % share or increment % share):
        problems.append(
            f"{given}: START and INCREMENT must be multiples of {share} (--micro-batch-size times "
            "data-parallel ranks)"
        )
    return problems


_RANGES: dict[str, tuple[float, float]] = {
    "adam_beta1": (0, 1),
    "adam_beta2": (0, 1),
    "hidden_dropout": (0, 1),
    "attention_dropout": (0, 1),
    "weight_decay": (0, math.inf),
    "clip_grad": (0, math.inf),
    "adam_eps": (0, math.inf),
    "layernorm_epsilon": (0, math.inf),
    "init_method_std": (0, math.inf),
    "lr_warmup_init": (0, math.inf),
    "eval_iters": (0, math.inf),
    "max_consecutive_skips": (1, math.inf),
    "spike_sigmas": (0, math.inf),
}


def ranges(cfg: RunConfig) -> list[str]:
    """Numbers outside of what they mean (not a number is outside, too)."""
    problems = []
    for name, (low, high) in _RANGES.items():
        value = cfg.get(name)
        if not low <= value < high:
            limit = "" if high == math.inf else f" and below {high}"
            problems.append(f"{flag_of(name)} {value}: must be at least {low}{limit}")
    return problems


def _retention(c: CheckpointConfig) -> list[str]:
    retain, every = c.save_retain_interval, c.save_interval
    if not (retain and every and retain % every):
        return []
    return [
        f"--save-retain-interval {retain}: must be a multiple of --save-interval {every}; use "
        f"{max(1, retain // every) * every}"
    ]


def checkpoints_and_logs(cfg: RunConfig) -> list[str]:
    """Flags that mean nothing without another one."""
    c, log, problems = cfg.checkpoint, cfg.logging, []

    def by_flag(name: str) -> bool:
        return cfg.given.get(name) == "flag"  # a preset may leave --save to the user

    needs = [
        ("--save-interval", c.save_interval and by_flag("save_interval"), "--save", c.save),
        (
            "--keep-last-checkpoints",
            c.keep_last_checkpoints and by_flag("keep_last_checkpoints"),
            "--save",
            c.save,
        ),
        (
            "--save-retain-interval",
            c.save_retain_interval and by_flag("save_retain_interval"),
            "--save",
            c.save,
        ),
        ("--ckpt-step", c.ckpt_step is not None, "--load", c.load),
        (
            "--allow-input-interface-change",
            c.allow_input_interface_change,
            "--finetune or --pretrained-checkpoint",
            c.finetune or c.pretrained_checkpoint,
        ),
        ("--finetune", c.finetune, "--load", c.load),
        ("--wandb-exp-name", log.wandb_exp_name, "--wandb-project", log.wandb_project),
        ("--wandb-entity", log.wandb_entity, "--wandb-project", log.wandb_project),
    ]
    problems += [
        f"{flag}: does nothing without {other}; give it too"
        for flag, value, other, given in needs
        if value and not given
    ]
    problems += _retention(c)
    if c.ckpt_step is not None and c.pretrained_checkpoint:
        problems.append(
            "--ckpt-step with --pretrained-checkpoint: --load would need that iteration at every "
            "launch; drop it, and name the folder of the iteration: --pretrained-checkpoint "
            f"{c.pretrained_checkpoint}/iter_{c.ckpt_step:07d}"
        )
    if cfg.ddp.overlap_param_gather and not cfg.ddp.use_distributed_optimizer:
        problems.append("--overlap-param-gather: needs --use-distributed-optimizer")
    if cfg.ddp.overlap_param_gather and not cfg.ddp.overlap_grad_reduce:
        problems.append("--overlap-param-gather: needs --overlap-grad-reduce")
    if cfg.runtime.distributed_timeout_minutes < 1:
        problems.append(
            f"--distributed-timeout-minutes {cfg.runtime.distributed_timeout_minutes}: must be at "
            "least 1"
        )
    hang = cfg.runtime.hang_timeout_minutes
    if hang is not None and not hang > 0:
        problems.append(f"--hang-timeout-minutes {hang}: must be above 0")
    if skipped := [number for number in cfg.training.iterations_to_skip if number < 1]:
        problems.append(f"--iterations-to-skip {skipped[0]}: iterations are counted from 1")
    return problems
