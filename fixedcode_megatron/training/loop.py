"""The training loop."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from fixedcode_megatron.training import phases
from fixedcode_megatron.training.checkpoint_save import CheckpointSaver
from fixedcode_megatron.training.cuda_graphs import LayerGraphs
from fixedcode_megatron.training.data_feed import DataFeed
from fixedcode_megatron.training.evaluation import evaluate
from fixedcode_megatron.training.finite import refuse_unsound_state
from fixedcode_megatron.training.metrics import Interval, MetricsLogger
from fixedcode_megatron.training.profiling import Profiler
from fixedcode_megatron.training.schedule import train_samples
from fixedcode_megatron.training.state import TrainState
from fixedcode_megatron.training.step import skip_step, train_step
from fixedcode_megatron.training.stopping import StopRequests
from fixedcode_megatron.training.trainer import Trainer

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Feeds:
    """The splits of the data; None where a split is not used."""

    train: DataFeed | None
    valid: DataFeed | None = None
    test: DataFeed | None = None


def train(
    trainer: Trainer, feeds: Feeds, metrics: MetricsLogger, *, tokenizer_fingerprint: str | None
) -> int:
    """Train to the end, or until something asks to stop; saves and evaluates on the way.

    Returns
    -------
    int
        0, or the number of the signal that ended the run early.
    """
    cfg, state = trainer.cfg, trainer.state
    saver = CheckpointSaver(trainer, tokenizer_fingerprint=tokenizer_fingerprint)

    def save() -> None:
        if saver.is_wanted:
            refuse_unsound_state(trainer)
            with trainer.phases(phases.SAVE):
                saver.save()

    assert feeds.train is not None
    trainer.set_batch_size()
    if finished(trainer):
        logger.info("iteration %d is done: nothing is left to train", state.iteration)
        return 0
    _compare_data(state, feeds.train.data_checksum)
    iterators = feeds.train.iterators(state.consumed_samples)
    interval = Interval()
    profiler = Profiler(trainer, Path(cfg.logging.run_dir or "."))
    graphs = LayerGraphs(trainer)
    with profiler, StopRequests(cfg, trainer.runtime) as stop:
        while not finished(trainer):
            trainer.phases.iteration = state.iteration + 1
            profiler.begin(state.iteration + 1)
            if state.iteration + 1 in cfg.training.iterations_to_skip:
                interval.add(skip_step(trainer, iterators))
            else:
                trainer.guard.measure_parts = _logs(trainer, state.iteration + 1)
                graphs.before_step()
                interval.add(train_step(trainer, iterators))
            if _due(state.iteration, cfg.logging.log_interval) or finished(trainer):
                metrics.log_interval(interval, feeds.train.take_checksum())
                interval = Interval()
            interval.pause_clock()
            saver.poll()
            if _due(state.iteration, cfg.training.eval_interval) or finished(trainer):
                evaluate_split(trainer, feeds.valid, metrics, "validation", stop)
            if _due(state.iteration, cfg.checkpoint.save_interval):
                save()
            interval.resume_clock()
            profiler.end(state.iteration)
            if stop.vote() or _due(state.iteration, cfg.training.exit_interval):
                break
        stop.finish()
    graphs.delete()
    if interval.iterations:
        metrics.log_interval(interval, feeds.train.take_checksum())
    save()
    with trainer.phases(phases.SAVE):
        saver.wait()
    if finished(trainer):
        evaluate_split(trainer, feeds.test, metrics, "test")
    return stop.signal_number


def _compare_data(state: TrainState, checksum: int) -> None:
    """Warn where a run goes on in other conversations than it was in, and remember these."""
    if state.data_checksum not in (0, checksum):
        logger.warning(
            "the conversations (or how they are tokenized) are not those that this run has read so "
            "far: their order is another one, so that some are read again and others not at all"
        )
    state.data_checksum = checksum


def finished(trainer: Trainer) -> bool:
    """Whether the run has done its iterations, or too few samples are left for one more batch."""
    target = trainer.cfg.training.train_iters
    if target is not None:
        return trainer.state.iteration >= target
    after = trainer.state.consumed_samples + trainer.global_batch_size
    return after > train_samples(trainer.cfg)


def evaluate_split(
    trainer: Trainer,
    feed: DataFeed | None,
    metrics: MetricsLogger,
    split: str,
    stop: StopRequests | None = None,
) -> None:
    """Evaluate a split, if there is one, and report its loss, unless a request to stop comes."""
    if feed is not None and feed.iterations:
        metrics.log_evaluation(split, evaluate(trainer, feed, feed.iterations, stop))


def _logs(trainer: Trainer, iteration: int) -> bool:
    """Whether a line will be logged after an iteration (but for those that end a run early)."""
    cfg = trainer.cfg
    return _due(iteration, cfg.logging.log_interval) or iteration == cfg.training.train_iters


def _due(iteration: int, interval: int | None) -> bool:
    return bool(interval) and iteration % interval == 0  # type: ignore[operator]
