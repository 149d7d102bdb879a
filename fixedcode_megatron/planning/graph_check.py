"""Whether training steps with CUDA graphs compute what steps without compute; and how fast.

    python -m fixedcode_megatron.planning.graph_check [--precision fp8_delayed]

The 1.7B model takes the same steps three times: twice without graphs, which shows how much two such
runs differ by themselves, and once with. `--device cpu` rehearses it with a small model, all
three times without graphs.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fixedcode_megatron.config import availability
from fixedcode_megatron.planning.gpu_check import check_config
from fixedcode_megatron.planning.throughput import build_variant, free, made_up_batches

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig
    from fixedcode_megatron.runtime import Runtime

_WARMUP = 3
TOLERANCE = 1e-4
"""Largest relative difference of losses that passes where two runs without graphs are equal."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train three times, print what was found; 1 if the losses with graphs are others."""
    parser = argparse.ArgumentParser(prog="python -m fixedcode_megatron.planning.graph_check")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    if options.device == "cuda" and not availability.importable("transformer_engine"):
        print("  CUDA graphs      not run: transformer-engine cannot be imported")
        return 0
    from fixedcode_megatron import runtime as run_time

    cfg = _config(options.device, options.precision)
    without = copy.deepcopy(cfg)
    without.set("cuda_graph_impl", "none")
    try:
        runtime = run_time.initialize(cfg)
        runs = [train(which, runtime, options.steps) for which in (without, without, cfg)]
    finally:
        run_time.shutdown()
    losses = [run[0] for run in runs]
    noise, difference = (largest_difference(losses[0], other) for other in losses[1:])
    passed = agree(noise, difference)
    seconds = [statistics.median(run[1][_WARMUP + 1 :]) for run in runs]
    print(
        f"  CUDA graphs, {options.precision:<14}{'ok' if passed else 'FAILED'}: losses of "
        f"{options.steps} steps differ by {difference:.1e} (two runs without: {noise:.1e}); "
        f"step {seconds[2] * 1e3:.1f} ms, without {seconds[1] * 1e3:.1f} ms"
    )
    return 0 if passed else 1


def agree(noise: float, difference: float) -> bool:
    """Whether a difference is no larger than chance, which two equal runs show, explains."""
    return difference <= max(TOLERANCE, 3 * noise)  # False where it is not a number


def largest_difference(losses: list[float], others: list[float]) -> float:
    """Largest relative difference of two runs' losses; nan where a loss is not a number."""
    pairs = torch.tensor([losses, others], dtype=torch.float64)
    return float(((pairs[1] - pairs[0]) / pairs[0]).abs().max())


def train(cfg: RunConfig, runtime: Runtime, steps: int) -> tuple[list[float], list[float]]:
    """Losses and seconds of the steps of a model built anew, always the same one."""
    from fixedcode_megatron.training.cuda_graphs import LayerGraphs
    from fixedcode_megatron.training.step import train_step

    torch.manual_seed(cfg.training.seed)
    trainer = build_variant(cfg, runtime, "binary")
    graphs, batches = LayerGraphs(trainer), [made_up_batches(trainer)]
    losses, seconds = [], []
    for _ in range(steps):
        runtime.synchronize()
        start = time.perf_counter()
        graphs.before_step()
        loss = train_step(trainer, batches).loss
        runtime.synchronize()
        seconds.append(time.perf_counter() - start)
        total, tokens = [float("nan")] * 2 if loss is None else loss.tolist()
        losses.append(total / tokens)
    graphs.delete()
    del trainer, graphs
    if cfg.transformer.fp8:
        from transformer_engine.pytorch.fp8 import FP8GlobalStateManager

        FP8GlobalStateManager.reset()
    free(runtime)
    return losses, seconds


def _config(device: str, precision: str) -> RunConfig:
    flags = "--micro-batch-size 1 --global-batch-size 2 "
    if device == "cpu":
        return check_config(device, flags + "--transformer-impl local --precision bf16")
    return check_config(
        device,
        f"{flags} --precision {precision} --transformer-impl transformer_engine "
        f"--cuda-graph-impl transformer_engine --cuda-graph-warmup-steps {_WARMUP}",
    )


if __name__ == "__main__":
    sys.exit(main())
