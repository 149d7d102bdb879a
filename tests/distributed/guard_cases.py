"""Ranks to which something happens in a given iteration."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

from tests.distributed.cases import run_main


def _at_iteration(iteration: int, rank: int, happen: Callable[[Any], None]) -> None:
    """Have `happen(trainer)` called on one rank when it begins an iteration."""
    from fixedcode_megatron.training import loop

    original = loop.train_step

    def step(trainer: Any, *args: Any) -> Any:
        if trainer.state.iteration + 1 == iteration and int(os.environ["RANK"]) == rank:
            happen(trainer)
        return original(trainer, *args)

    loop.train_step = step


def with_bad_weight(argv: list[str], iteration: int, rank: int) -> int:
    """`run_main` where an element of a rank's first weight turns into a NaN."""

    def corrupt(trainer: Any) -> None:
        weight = next(p for p in trainer.models[0].parameters() if p.dim() == 2)
        weight.data[0, 0] = math.nan

    _at_iteration(iteration, rank, corrupt)
    return run_main(argv)


def with_scaled_loss(argv: list[str], iterations: list[int], rank: int, factor: float) -> int:
    """`run_main` where a rank's token losses are multiplied in some iterations."""
    from fixedcode_megatron.training import step

    original = step.forward_step

    def forward_step(iterator: Any, model: Any, *, phase: Any, **options: Any) -> Any:
        output, loss_function = original(iterator, model, phase=phase, **options)
        if phase.iteration not in iterations or int(os.environ["RANK"]) != rank:
            return output, loss_function
        return output, lambda losses: loss_function(losses * factor)

    step.forward_step = forward_step
    return run_main(argv)


def asleep_in_the_data(argv: list[str], iteration: int, rank: int) -> int:
    """`run_main` where a rank, of two, never gets its data (two micro-batches an iteration)."""
    from fixedcode_megatron.training import data_feed

    original = data_feed.DataFeed._iterate
    count = 0

    def sleep_for_ever() -> None:
        while True:
            time.sleep(1)

    def iterate(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal count
        for batch in original(self, *args, **options):
            count += 1
            if count > 2 * (iteration - 1) and int(os.environ["RANK"]) == rank:
                sleep_for_ever()
            yield batch

    data_feed.DataFeed._iterate = iterate
    return run_main(argv)


def killed(argv: list[str], iteration: int, rank: int) -> int:
    """`run_main` where a rank is killed."""
    _at_iteration(iteration, rank, lambda _: os.kill(os.getpid(), signal.SIGKILL))
    return run_main(argv)


def killed_beside_a_waiting_rank(rank: int) -> None:
    """Ranks under the hang watch, of which one is killed while the others wait for nothing."""
    from fixedcode_megatron.training.hang import HangWatch
    from fixedcode_megatron.training.phases import Phases

    own = int(os.environ["RANK"])
    with HangWatch(Phases(), rank=own, world_size=int(os.environ["WORLD_SIZE"]), timeout=15):
        if own == rank:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)


def signalled_in_evaluation(argv: list[str], rank: int, call: int) -> int:
    """`run_main` where a rank is asked to stop in the middle of an evaluation."""
    from fixedcode_megatron.training import evaluation

    original, calls = evaluation.run_microbatches, 0

    def run(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and int(os.environ["RANK"]) == rank:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **options)

    evaluation.run_microbatches = run
    return run_main(argv)


def parameters_finite(argv: list[str]) -> bool:
    """Whether all weights and moments are finite after loading the run's checkpoint."""
    from fixedcode_megatron.training import loop

    found = []

    def look(trainer: Any, *_args: Any, **_options: Any) -> int:
        tensors = [p.data for model in trainer.models for p in model.parameters()]
        for optimizer in trainer.optimizer.chained_optimizers:
            for state in optimizer.optimizer.state.values():
                tensors += [v for v in state.values() if isinstance(v, torch.Tensor)]
        found.append(all(bool(tensor.isfinite().all()) for tensor in tensors))
        return 0

    loop.train = look
    assert run_main(argv) == 0
    return found[0]
