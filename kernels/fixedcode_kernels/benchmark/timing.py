"""Measures candidates in turns, so that a busy moment of the machine hits all of them."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

Candidate = Callable[[int], object]  # called with the number of the round
TURN_MS = 40.0


class Timing(NamedTuple):
    """Milliseconds per call."""

    median: float
    best: float


def measure(
    candidates: dict[str, Candidate], device: torch.device, seconds: float, least: int = 3
) -> dict[str, Timing]:
    """Time the candidates in turns until the time is up, and at least `least` turns.

    Fast candidates run several times a turn, up to `TURN_MS`, so that all get their share.
    """
    timer = _time_cuda if device.type == "cuda" else _time_cpu
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    repeats = {}
    for name, candidate in candidates.items():
        candidate(0)  # compiles, allocates, warms up
        repeats[name] = max(1, min(10, int(TURN_MS / max(timer(candidate, 1), 1e-3))))
    end = time.perf_counter() + seconds
    turn = 0
    while time.perf_counter() < end or turn < least:
        turn += 1
        for name, candidate in candidates.items():
            samples[name] += [timer(candidate, turn + n) for n in range(repeats[name])]
    return {name: Timing(statistics.median(v), min(v)) for name, v in samples.items()}


def keep_memory() -> None:
    """Tell glibc to keep freed memory: else every fresh output costs page faults on a CPU.

    They take ten times what writing the output takes and would hide every difference.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    no_mmap, trim_threshold, top_pad = -4, -1, -2
    mallopt(no_mmap, 0)
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(top_pad, 200_000_000)


def call_overhead(
    candidate: Callable[[], object], device: torch.device, calls: int = 2000
) -> float:
    """Return microseconds of host time per call, the best of five batches."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls // 5):
            candidate()
        best = min(best, (time.perf_counter() - start) / (calls // 5))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return best * 1e6


def _time_cpu(candidate: Candidate, turn: int) -> float:
    start = time.perf_counter()
    candidate(turn)
    return (time.perf_counter() - start) * 1e3


def _time_cuda(candidate: Candidate, turn: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(200_000)  # the host runs ahead, so that launches do not show as gaps
    start.record()
    candidate(turn)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def outputs_beyond_cache(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, cache_bytes: int
) -> list[torch.Tensor]:
    """Return outputs of one shape that together are larger than twice the cache."""
    one = dtype.itemsize * torch.Size(shape).numel()
    count = max(2, -(-2 * cache_bytes // one))
    return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(count)]
