"""Traces of a few iterations while training, and the history of the GPU's memory."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fixedcode_megatron.training.trainer import Trainer

logger = logging.getLogger(__name__)

FOLDER = "profile"
HISTORY_ENTRIES = 100_000


class Profiler:
    """Profiles this rank's iterations between two, if the flags say so.

    With `--use-pytorch-profiler` they become one Chrome trace in the run folder. Without, CUDA's
    profiler is switched on for them: start the job under nsys, `--capture-range=cudaProfilerApi`.

    Parameters
    ----------
    run_dir
        Traces go to its folder `profile`, memory snapshots too.
    """

    def __init__(self, trainer: Trainer, run_dir: Path) -> None:
        log = trainer.cfg.logging
        self._phases, self._rank = trainer.phases, trainer.runtime.rank
        self._folder = run_dir / FOLDER
        self._on_gpu = trainer.runtime.device.type == "cuda"
        self._with_torch = log.use_pytorch_profiler
        can = self._with_torch or self._on_gpu
        wanted = log.profile and can and self._rank in log.profile_ranks
        self._first = log.profile_step_start + 1 if wanted else None
        self._last = log.profile_step_end
        self._nvtx = log.nvtx_ranges and self._on_gpu
        self._phases.nvtx = self._nvtx
        self._record_memory = log.record_memory_history
        self._snapshot = self._folder / f"rank{self._rank}_{log.memory_snapshot_path}"
        self._iteration = contextlib.ExitStack()
        self._started_at: int | None = None
        self._profile: Any = None

    def __enter__(self) -> Profiler:
        if self._record_memory:
            self._folder.mkdir(parents=True, exist_ok=True)
            torch.cuda.memory._record_memory_history(max_entries=HISTORY_ENTRIES)
            attach: Any = torch._C._cuda_attach_out_of_memory_observer  # type: ignore[attr-defined]
            attach(self._dump_out_of_memory)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._iteration.close()
        self._stop(self._phases.iteration)
        if self._record_memory and kind is None:
            self._dump_memory()
            torch.cuda.memory._record_memory_history(enabled=None)

    def begin(self, iteration: int) -> None:
        """To be called when an iteration begins, with its number in the log."""
        first = self._first
        if first is not None and first <= iteration <= self._last and self._started_at is None:
            self._start(iteration)
        if self._started_at is not None:
            self._iteration.enter_context(torch.profiler.record_function(f"iteration {iteration}"))

    def end(self, iteration: int) -> None:
        """To be called when an iteration is over, its evaluation and checkpoint included."""
        self._iteration.close()
        if iteration >= self._last:
            self._stop(iteration)
            self._first = None

    def _start(self, iteration: int) -> None:
        self._started_at = iteration
        self._phases.record_functions = True
        if self._with_torch:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if self._on_gpu:
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._profile = torch.profiler.profile(activities=activities, record_shapes=True)
            self._profile.start()
            return
        self._phases.nvtx = True
        torch.cuda.cudart().cudaProfilerStart()
        self._profile = torch.autograd.profiler.emit_nvtx(record_shapes=True)
        self._profile.__enter__()

    def _stop(self, iteration: int) -> None:
        first, self._started_at = self._started_at, None
        if first is None:
            return
        self._phases.record_functions = False
        self._phases.nvtx = self._nvtx
        if not self._with_torch:
            torch.cuda.cudart().cudaProfilerStop()
            self._profile.__exit__(None, None, None)
            return
        self._profile.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"rank{self._rank}_iterations_{first}-{iteration}.json"
        self._profile.export_chrome_trace(str(path))
        self._profile = None
        logger.warning("rank %d: wrote the trace %s", self._rank, path)

    def _dump_memory(self) -> None:
        torch.cuda.memory._dump_snapshot(str(self._snapshot))
        logger.warning("rank %d: wrote the memory snapshot %s", self._rank, self._snapshot)

    def _dump_out_of_memory(self, _device: int, _wanted: int, _total: int, _free: int) -> None:
        logger.warning("rank %d: out of memory in %s", self._rank, self._phases)
        self._dump_memory()
