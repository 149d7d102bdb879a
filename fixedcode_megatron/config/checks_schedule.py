"""Checks of the run's length and its schedules of learning rate and weight decay."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig


def schedule(cfg: RunConfig) -> list[str]:
    """Length of the run, learning rate and weight decay."""
    training, problems = cfg.training, []
    if training.train_iters is not None and training.train_samples is not None:
        problems.append(
            "--train-iters and --train-samples exclude each other: drop one (--train-iters none "
            "drops a preset's)"
        )
    by_samples = training.train_samples is not None
    unit, other = ("samples", "iters") if by_samples else ("iters", "samples")
    for stem in ("lr_decay", "lr_warmup", "lr_wsd_decay"):
        if f"{stem}_{other}" in cfg.given and getattr(training, f"{stem}_{other}"):
            stem = stem.replace("_", "-")
            problems.append(f"--{stem}-{other} with --train-{unit}: use --{stem}-{unit}")
    lr, min_lr = cfg.optimizer.lr, cfg.optimizer.min_lr
    if lr is not None and (lr < 0 or not 0 <= min_lr <= lr):
        problems.append(f"--lr {lr} and --min-lr {min_lr}: must be 0 <= min-lr <= lr")
    if cfg.optimizer.optimizer not in ("adam", "sgd", "muon"):
        problems.append(
            f"--optimizer {cfg.optimizer.optimizer}: the optimizers are adam, sgd and muon"
        )
    if cfg.optimizer.optimizer == "sgd" and cfg.ddp.use_distributed_optimizer:
        problems.append(
            "--optimizer sgd with --use-distributed-optimizer: megatron-core shares out adam's "
            "state alone; drop one"
        )
    problems += _warmup(cfg, unit) + _curve(cfg, unit) + _weight_decay(cfg)
    if training.override_opt_param_scheduler and training.use_checkpoint_opt_param_scheduler:
        problems.append(
            "--override-opt-param-scheduler and --use-checkpoint-opt-param-scheduler exclude each "
            "other: drop one"
        )
    return problems


def _curve(cfg: RunConfig, unit: str) -> list[str]:
    """What megatron-core would run through a wrong curve with, or stop at with an assertion."""
    training, lr, problems = cfg.training, cfg.optimizer.lr, []
    if lr is not None and training.lr_warmup_init > lr:
        problems.append(f"--lr-warmup-init {training.lr_warmup_init}: must be at most --lr {lr}")
    warmup = training.lr_warmup_fraction or getattr(training, f"lr_warmup_{unit}")
    if training.lr_decay_style == "inverse-square-root" and not warmup:
        problems.append(
            "--lr-decay-style inverse-square-root: needs a warm-up, whose length is the curve's "
            f"unit; give --lr-warmup-{unit} or --lr-warmup-fraction"
        )
    last = getattr(training, f"lr_wsd_decay_{unit}")
    if training.lr_decay_style != "WSD":
        return problems
    if last is None:
        return [*problems, f"--lr-decay-style WSD: needs --lr-wsd-decay-{unit}"]
    length = _decay_length(cfg, unit)
    if length is None:
        return problems
    fraction = training.lr_warmup_fraction
    flat = length - (int(fraction * length) if fraction else getattr(training, f"lr_warmup_{unit}"))
    if flat >= 1 and not 1 <= last <= flat:  # where the warm-up leaves nothing, that is the problem
        problems.append(
            f"--lr-wsd-decay-{unit} {last}: must be at least 1 and at most {flat}, what the "
            "warm-up leaves of the decay's length"
        )
    return problems


def _decay_length(cfg: RunConfig, unit: str) -> int | None:
    """Iterations or samples that the learning rate takes to its end, warm-up included."""
    training = cfg.training
    return getattr(training, f"lr_decay_{unit}") or getattr(training, f"train_{unit}")


def _weight_decay(cfg: RunConfig) -> list[str]:
    """Its two ends belong to a style that changes it, which can only be upwards."""
    training, problems = cfg.training, []
    changes = training.weight_decay_incr_style != "constant"
    start, end = training.start_weight_decay, training.end_weight_decay
    if changes and (start is None or end is None):
        problems.append(
            f"--weight-decay-incr-style {training.weight_decay_incr_style}: needs "
            "--start-weight-decay and --end-weight-decay"
        )
    elif start is not None and end is not None and start > end:
        problems.append(
            f"--start-weight-decay {start}, --end-weight-decay {end}: megatron-core's weight "
            "decay can only grow; swap them"
        )
    if not changes and (start, end) != (None, None):
        problems.append(
            "--start-weight-decay, --end-weight-decay: give --weight-decay-incr-style linear or "
            "cosine with them, or use --weight-decay for a constant one"
        )
    return problems


def _warmup(cfg: RunConfig, unit: str) -> list[str]:
    """Warm-up must end before the decay does."""
    training, length = cfg.training, _decay_length(cfg, unit)
    warmup, fraction = getattr(training, f"lr_warmup_{unit}"), training.lr_warmup_fraction
    if fraction is not None:
        if warmup:
            return [f"--lr-warmup-fraction and --lr-warmup-{unit} exclude each other: drop one"]
        if not 0 <= fraction < 1:
            return [f"--lr-warmup-fraction {fraction}: must be at least 0 and below 1"]
    if warmup < 0 or (length is not None and warmup >= length):
        return [f"--lr-warmup-{unit} {warmup}: must be below the decay's length of {length}"]
    return []
