"""Megatron's log line, and how it is printed."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any


def log_line(iteration: int, train_iters: int | None, figures: Mapping[str, Any]) -> str:
    """Megatron's line: its fields in its order, then tokens per second and MFU."""
    total = str(train_iters or "?")
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    mfu, norm = figures["MFU"], figures["grad norm"]
    fields = [
        f"iteration {iteration:8d}/{total:>8}",
        f"consumed samples: {figures['consumed samples']:12d}",
        f"elapsed time per iteration (ms): {figures['elapsed time per iteration (ms)']:.1f}",
        f"throughput per GPU (TFLOP/s/GPU): {figures['throughput per GPU (TFLOP/s/GPU)']:.1f}",
        f"learning rate: {figures['learning rate']:.6E}",
        f"global batch size: {figures['global batch size']:5d}",
        f"lm loss: {figures['lm loss']:.6E}",
        f"loss scale: {figures['loss scale']:.1f}",
        *([] if norm is None else [f"grad norm: {norm:.3f}"]),
        *([f"num zeros: {figures['num zeros']:.0f}"] if "num zeros" in figures else []),
        f"number of skipped iterations: {figures['number of skipped iterations']:3d}",
        f"number of nan iterations: {figures['number of nan iterations']:3d}",
        f"tokens per second on all GPUs: {figures['tokens per second']:.1f}",
        f"tokens per second per GPU: {figures['tokens per second per GPU']:.1f}",
        f"MFU: {'n/a' if mfu is None else f'{mfu:.1%}'}",
    ]
    return f" [{stamp}] " + " | ".join(fields) + " |"


def print_line(line: str) -> None:
    """Write one line of the run's log (the loggers carry warnings; this is the product)."""
    logging.getLogger("fixedcode_megatron.log").info(line)
