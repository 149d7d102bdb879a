"""Training steps of the 1.7B model on one GPU: learned table, binary code, folded; as JSON.

    python -m fixedcode_megatron.planning.gpu_check --json RESULTS.json

BF16 on torch-native layers, at the largest micro-batch that fits. `--device cpu` rehearses it with
a model that is small enough.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fixedcode_megatron.planning.throughput import build_variant, free, made_up_batches, measure
from fixedcode_megatron.planning.variants import FOLD

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig
    from fixedcode_megatron.planning.throughput import Measurement
    from fixedcode_megatron.runtime import Runtime

VARIANTS = ["learned", "binary", f"binary{FOLD}"]
_MICRO_BATCHES = (32, 16, 8, 4, 2, 1)
_SMALL = (
    "--num-layers 2 --hidden-size 128 --num-attention-heads 4 --kv-channels 32 "
    "--num-query-groups 4 --ffn-hidden-size 256 --seq-length 64 --max-position-embeddings 64 "
    "--vocab-size 1024 --code-bits 16"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print one line per variant, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m fixedcode_megatron.planning.gpu_check")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    from fixedcode_megatron import runtime as run_time

    try:
        cfg = _config(options.device, 1)
        runtime = run_time.initialize(cfg)
        micro_batch = largest_micro_batch(options.device, runtime)
        cfg = _config(options.device, micro_batch)
        found = measure(
            cfg,
            runtime,
            VARIANTS,
            rounds=options.rounds,
            steps=options.steps,
            warmup=1,
            rebuild=True,
        )
    finally:
        run_time.shutdown()
    results = as_json(found, micro_batch)
    options.json.write_text(json.dumps(results, indent=1) + "\n")
    for name, row in results["variants"].items():
        mfu = "n/a" if row["mfu"] is None else f"{row['mfu']:.1%}"
        print(f"  {name:<14}{row['tokens_per_second']:>10,.0f} tokens/s  MFU {mfu}")
    return 0


def check_config(device: str, flags: str) -> RunConfig:
    """The 1.7B model (on a CPU a small one) without data, and these flags."""
    from fixedcode_megatron.config import parse_args

    common = (
        "--config paper_b_1.7b --prepare-data none --data-path made-up --train-iters 1000 "
        f"--lr-warmup-iters 0 --device {device} {_SMALL if device == 'cpu' else ''} "
    )
    return parse_args((common + flags).split())


def _config(device: str, micro_batch: int) -> RunConfig:
    return check_config(
        device,
        "--precision bf16 --transformer-impl local "
        f"--micro-batch-size {micro_batch} --global-batch-size {micro_batch}",
    )


def largest_micro_batch(device: str, runtime: Runtime) -> int:
    """The largest micro-batch whose training step fits with the learned table, which needs most."""
    from fixedcode_megatron.training.step import train_step

    for micro_batch in _MICRO_BATCHES if device == "cuda" else (2, 1):
        try:
            trainer = build_variant(_config(device, micro_batch), runtime, "learned")
            for _ in range(2):
                train_step(trainer, [made_up_batches(trainer)])
            return micro_batch
        except torch.cuda.OutOfMemoryError:
            pass
        finally:
            trainer = None  # type: ignore[assignment]
            free(runtime)
    sys.exit("error: not even a micro-batch of 1 fits")


def as_json(found: Measurement, micro_batch: int) -> dict[str, Any]:
    """What was measured, with where and with what."""
    return {
        "device": found.device_name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "micro_batch_size": micro_batch,
        "tokens_per_step": found.tokens,
        "variants": {
            variant.name: {
                "step_ms": [round(seconds * 1e3, 3) for seconds in variant.seconds],
                "tokens_per_second": round(found.tokens_per_second(variant), 1),
                "mfu": found.mfu(variant),
                "speed_over_learned": round(statistics.median(found.ratios(variant)), 4),
                "memory_bytes": variant.memory,
                "joules_per_step": [round(joules, 2) for joules in variant.joules],
                "parts_ms": {part: round(variant.part(part) * 1e3, 3) for part in variant.parts[0]},
            }
            for variant in found.variants
        },
    }


if __name__ == "__main__":
    sys.exit(main())
