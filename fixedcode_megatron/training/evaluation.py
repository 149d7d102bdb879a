"""Held-out loss during training and after it."""

from __future__ import annotations

import torch
from megatron.core import parallel_state

from fixedcode_megatron.training import phases
from fixedcode_megatron.training.data_feed import DataFeed
from fixedcode_megatron.training.metrics import mean_loss
from fixedcode_megatron.training.step import run_microbatches
from fixedcode_megatron.training.stopping import StopRequests
from fixedcode_megatron.training.trainer import Trainer


def evaluate(
    trainer: Trainer, feed: DataFeed, iterations: int, stop: StopRequests | None = None
) -> float | None:
    """Mean loss in nats per token over the first `iterations` global batches of a split.

    Every evaluation reads the same samples, so that values along a run (while the batch size still
    ramps up, too) and of runs with different input interfaces can be compared.

    Returns
    -------
    float or None
        The same value on every rank of the last pipeline stage; None on the others, and if `stop`
        was asked to end the run before the evaluation was complete.
    """
    was_training = trainer.models[0].training
    for model in trainer.models:
        model.eval()
    iterators = feed.iterators(consumed_samples=0)
    total = None
    complete = True
    with torch.no_grad(), trainer.parameters_gathered():
        for _ in range(iterations):
            if stop is not None and stop.vote():
                complete = False
                break
            with trainer.phases(phases.EVALUATION):
                pair = run_microbatches(
                    trainer,
                    iterators,
                    num_microbatches=trainer.num_evaluation_microbatches,
                    forward_only=True,
                )
            if pair is not None:
                total = pair if total is None else total + pair
    for model in trainer.models:
        model.train(was_training)
    if not complete or not parallel_state.is_pipeline_last_stage(ignore_virtual=True):
        return None
    return mean_loss(total, trainer.runtime.device)
