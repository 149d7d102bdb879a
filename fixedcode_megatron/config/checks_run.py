"""Checks of how a run is watched: profiling, deterministic mode."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fixedcode_megatron import determinism
from fixedcode_megatron.config import availability

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig


def profiling(cfg: RunConfig, world_size: int) -> list[str]:
    """Windows that profile nothing, and what only GPUs have."""
    log, on_gpu, problems = cfg.logging, availability.on_gpu(cfg), []
    if log.profile:
        if not 0 <= log.profile_step_start < log.profile_step_end:
            problems.append(
                f"--profile-step-start {log.profile_step_start} and --profile-step-end "
                f"{log.profile_step_end}: the iterations after the first up to the second are "
                "profiled; the second must be larger"
            )
        if beyond := [rank for rank in log.profile_ranks if not 0 <= rank < world_size]:
            problems.append(
                f"--profile-ranks {beyond[0]}: there are {world_size} ranks, counted from 0"
            )
        if not log.use_pytorch_profiler and not on_gpu:
            cfg.notices.append(
                "--profile has no effect: without --use-pytorch-profiler it is nsys that takes the "
                "trace, of GPUs; add --use-pytorch-profiler"
            )
    if log.record_memory_history and not on_gpu:
        problems.append(
            "--record-memory-history: PyTorch keeps the history of GPUs' memory alone; leave it out"
        )
    if "/" in log.memory_snapshot_path:
        problems.append(
            f"--memory-snapshot-path {log.memory_snapshot_path}: give the name of a file; it goes "
            "to the folder profile of --run-dir, one for each rank"
        )
    if log.nvtx_ranges and not on_gpu:
        cfg.notices.append("--nvtx-ranges has no effect: nsys, which shows them, profiles GPUs")
    return problems


def deterministic(cfg: RunConfig) -> list[str]:
    """What contradicts `--deterministic-mode`, in the flags and in the environment."""
    if not cfg.transformer.deterministic_mode:
        return []
    problems = []
    if cfg.transformer.cross_entropy_loss_fusion:
        problems.append(
            "--cross-entropy-loss-fusion with --deterministic-mode: its kernel adds up in no fixed "
            "order; drop one"
        )
    for name, values in determinism.ENVIRONMENT.items():
        found = os.environ.get(name)
        if found is not None and found not in values:
            problems.append(
                f"{name}={found} with --deterministic-mode: unset it, or set it to "
                f"{' or '.join(values)}"
            )
    return problems
