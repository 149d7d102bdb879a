"""The schedule of learning rate and weight decay, counted in samples as Megatron counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class ScheduleLengths:
    """Lengths of the schedule's phases in samples."""

    warmup: int
    decay: int
    weight_decay: int
    wsd_decay: int | None


def train_samples(cfg: RunConfig) -> int:
    """Samples that the whole run reads."""
    training = cfg.training
    if training.train_samples:
        return training.train_samples
    assert training.train_iters and training.global_batch_size
    return training.train_iters * training.global_batch_size


def wanted_samples(cfg: RunConfig) -> tuple[int, int, int]:
    """Samples that training, one validation and the test read."""
    assert cfg.training.global_batch_size is not None
    held_out = cfg.training.eval_iters * cfg.training.global_batch_size
    return 0 if cfg.training.skip_train else train_samples(cfg), held_out, held_out


def schedule_lengths(cfg: RunConfig) -> ScheduleLengths:
    """Turn the iteration or sample counts of the flags into samples."""
    t = cfg.training
    assert t.global_batch_size is not None
    if t.train_samples:
        decay = t.lr_decay_samples or t.train_samples
        warmup, wsd = t.lr_warmup_samples, t.lr_wsd_decay_samples
    else:
        batch = t.global_batch_size
        decay = t.lr_decay_iters * batch if t.lr_decay_iters else train_samples(cfg)
        warmup = t.lr_warmup_iters * batch
        wsd = None if t.lr_wsd_decay_iters is None else t.lr_wsd_decay_iters * batch
    if t.lr_warmup_fraction is not None:
        warmup = int(t.lr_warmup_fraction * decay)
    return ScheduleLengths(
        warmup=warmup, decay=decay, weight_decay=train_samples(cfg), wsd_decay=wsd
    )


def build_scheduler(cfg: RunConfig, optimizer: Any) -> OptimizerParamScheduler:
    """megatron-core's scheduler for the run; `step(samples)` advances it."""
    t, lengths = cfg.training, schedule_lengths(cfg)
    decay = cfg.optimizer.weight_decay
    return OptimizerParamScheduler(
        optimizer,
        init_lr=t.lr_warmup_init,
        max_lr=cfg.optimizer.lr,
        min_lr=cfg.optimizer.min_lr or 0.0,
        lr_warmup_steps=lengths.warmup,
        lr_decay_steps=lengths.decay,
        lr_decay_style=t.lr_decay_style,
        start_wd=decay if t.start_weight_decay is None else t.start_weight_decay,
        end_wd=decay if t.end_weight_decay is None else t.end_weight_decay,
        wd_incr_steps=lengths.weight_decay,
        wd_incr_style=t.weight_decay_incr_style,
        use_checkpoint_opt_param_scheduler=t.use_checkpoint_opt_param_scheduler,
        override_opt_param_scheduler=t.override_opt_param_scheduler,
        wsd_decay_steps=lengths.wsd_decay,
        lr_wsd_decay_style=t.lr_wsd_decay_style,
    )
