"""What a run reports: Megatron's log line, and the same figures and more as JSON lines."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from fixedcode_megatron.config.sections import FIXED_INTERFACES
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.training.agreement import one_rank_decides
from fixedcode_megatron.training.checkpoint_files import write_atomically
from fixedcode_megatron.training.gradient_norms import PARTS
from fixedcode_megatron.training.log_line import log_line, print_line
from fixedcode_megatron.training.memory import MemoryUse
from fixedcode_megatron.training.metrics_file import MetricsFile
from fixedcode_megatron.training.nvml import open_monitor
from fixedcode_megatron.training.peaks import BF16, FP8, peak_flops
from fixedcode_megatron.training.reporters import open_tensorboard, open_wandb
from fixedcode_megatron.training.savings import savings

if TYPE_CHECKING:
    from fixedcode_megatron.training.step import StepResult
    from fixedcode_megatron.training.trainer import Trainer

SAVINGS_FILE = "savings.json"


def mean_loss(pair: Tensor | None, device: torch.device) -> float | None:
    """Mean token loss over the data-parallel group from each rank's [2] pair (sum, tokens).

    None stands for no iterations. Returns None on ranks without the loss; NaN if there was no
    token.
    """
    if not parallel_state.is_pipeline_last_stage(ignore_virtual=True):
        return None
    if pair is None:
        pair = torch.zeros(2, dtype=torch.float64)
    total = pair.to(device=device, dtype=torch.float64, copy=True)
    dist.all_reduce(total, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    value, tokens = total.tolist()
    return value / tokens if tokens else math.nan


@dataclass
class Interval:
    """Sums over the iterations between two log lines; losses stay on the device until then.

    Attributes
    ----------
    loss
        [2] FP64 pair (sum of token losses, number of tokens) of this rank; None without the loss.
    nan
        Iterations whose loss on this rank was not finite, as a tensor on the device (not those
        that the guard has left out and counted).
    squares
        [3] FP64: squared gradient norms of input, layers and head in the last iteration.
    samples
        Samples of all ranks together; `batch_size` are those of the last iteration.
    """

    loss: Tensor | None = None
    nan: Tensor | None = None
    iterations: int = 0
    samples: int = 0
    batch_size: int = 0
    grad_norm: float | None = None
    num_zeros: float | None = None
    squares: Tensor | None = None
    seconds: float = 0.0
    _started: float = field(default_factory=time.perf_counter)

    def add(self, result: StepResult) -> None:
        """Count one more iteration."""
        self.iterations += 1
        self.samples += result.samples
        self.batch_size = result.samples
        self.grad_norm, self.num_zeros = result.grad_norm, result.num_zeros
        self.squares = result.squares
        if result.loss is not None:
            nan = (~result.loss[0].isfinite()).to(torch.int64)
            self.loss = result.loss if self.loss is None else self.loss + result.loss
            self.nan = nan if self.nan is None else self.nan + nan

    def pause_clock(self) -> None:
        """Leave out the time from here to `resume_clock` (evaluation, checkpoints)."""
        self.seconds += time.perf_counter() - self._started

    def resume_clock(self) -> None:
        """Count time again."""
        self._started = time.perf_counter()


class MetricsLogger:
    """Writes the figures of a run. Only the logging rank opens files; the others stay silent."""

    def __init__(self, trainer: Trainer, run_dir: Path) -> None:
        self._trainer = trainer
        self._file: MetricsFile | None = None
        self._tensorboard: Any = None
        self._wandb: Any = None
        self._memory = MemoryUse(trainer)
        self._monitor = open_monitor(trainer.runtime.device, trainer.runtime.world_size)
        one_rank_decides(lambda: self._open(run_dir), rank=trainer.logging_rank)

    def _open(self, run_dir: Path) -> None:
        try:
            self._open_all(run_dir)
        except OSError as error:
            raise UserError(f"--run-dir {run_dir} cannot be written to: {error}") from error

    def _open_all(self, run_dir: Path) -> None:
        cfg, iteration = self._trainer.cfg, self._trainer.state.iteration
        # An evaluation of an earlier checkpoint takes nothing back.
        continue_from = None if cfg.training.skip_train else iteration
        self._file = MetricsFile(run_dir, continue_from)
        self._tensorboard = open_tensorboard(cfg, continue_from)
        self._wandb = open_wandb(cfg, run_dir, continue_from)
        saved = None if cfg.training.skip_train else savings(self._trainer)
        if saved is not None:
            print_line(str(saved))
            write_atomically(run_dir / SAVINGS_FILE, json.dumps(asdict(saved)) + "\n")

    def close(self) -> None:
        """Flush and close whatever is open."""
        if self._file is not None:
            self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()

    def log_interval(self, interval: Interval, data_checksum: int) -> None:
        """Report the iterations since the last line; every rank must call it."""
        trainer = self._trainer
        trainer.runtime.synchronize()
        interval.pause_clock()
        seconds = interval.seconds / interval.iterations
        loss = mean_loss(interval.loss, trainer.runtime.device)
        trainer.state.nan_iterations += _worst_rank(interval.nan, trainer.runtime.device)
        checksum = _sum_over_data_parallel(data_checksum, trainer.runtime.device)
        machine = self._memory.report()
        machine |= self._monitor.report(interval.samples * trainer.cfg.model.seq_length)
        if not trainer.is_logging_rank:
            return
        assert loss is not None
        figures = self._figures(interval, loss, seconds) | {"data checksum": checksum} | machine
        line = log_line(trainer.state.iteration, trainer.cfg.training.train_iters, figures)
        print_line(line)
        self._emit("train", trainer.state.iteration, figures)

    def log_evaluation(self, split: str, loss: float | None) -> None:
        """Report a held-out loss in nats per token; None on ranks that do not hold it."""
        if loss is None or not self._trainer.is_logging_rank:
            return
        iteration = self._trainer.state.iteration
        perplexity = math.exp(min(20.0, loss))
        print_line(
            f" {split} loss at iteration {iteration} | lm loss value: {loss:.6E} "
            f"| lm loss PPL: {perplexity:.6E} |"
        )
        self._emit(split, iteration, {"lm loss": loss, "lm loss PPL": perplexity})

    def _figures(self, interval: Interval, loss: float, seconds: float) -> dict[str, Any]:
        trainer, state = self._trainer, self._trainer.state
        world_size = trainer.runtime.world_size
        tokens = interval.samples * trainer.cfg.model.seq_length
        tokens_per_second = tokens / interval.iterations / seconds
        flops = tokens_per_second * trainer.shape.flops_per_token / world_size
        peak = peak_flops(trainer.runtime.device_name, precision(trainer))
        return {
            "consumed samples": state.consumed_samples,
            "consumed tokens": state.consumed_tokens,
            "elapsed time per iteration (ms)": seconds * 1e3,
            "throughput per GPU (TFLOP/s/GPU)": flops / 1e12,
            "learning rate": learning_rate(trainer.optimizer),
            "global batch size": interval.batch_size,
            "lm loss": loss,
            "loss scale": float(trainer.optimizer.get_loss_scale().item()),
            "grad norm": interval.grad_norm,
            **self._part_norms(interval.squares),
            **({} if interval.num_zeros is None else {"num zeros": interval.num_zeros}),
            "number of skipped iterations": state.skipped_iterations,
            "number of nan iterations": state.nan_iterations,
            "tokens per second": tokens_per_second,
            "tokens per second per GPU": tokens_per_second / world_size,
            "MFU": None if peak is None else flops / peak,
        }

    def _part_norms(self, squares: Tensor | None) -> dict[str, float | None]:
        """Gradient norm of each part of the model; None where it was not measured or has none."""
        norms = (
            dict.fromkeys(PARTS)
            if squares is None
            else dict(zip(PARTS, squares.sqrt().tolist(), strict=True))
        )
        if self._trainer.cfg.input.input_interface in FIXED_INTERFACES:
            norms["input"] = None
        return {f"grad norm {part}": norm for part, norm in norms.items()}

    def _emit(self, kind: str, iteration: int, figures: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write({"kind": kind, "iteration": iteration, **figures})
        scalars = {f"{kind}/{k}": v for k, v in figures.items() if isinstance(v, int | float)}
        if self._tensorboard is not None:
            for name, value in scalars.items():
                self._tensorboard.add_scalar(name, value, iteration)
        if self._wandb is not None:
            self._wandb.log(scalars, step=iteration)


def learning_rate(optimizer: Any) -> float:
    """Learning rate of the optimizer's groups without a rate of their own (`--decoupled-lr`)."""
    groups = optimizer.param_groups
    return float(next((g for g in groups if g.get("default_config", True)), groups[0])["lr"])


def precision(trainer: Trainer) -> str | None:
    """Which of the device's peaks the matrix products of the layers are measured against."""
    if trainer.config.fp8:
        return FP8
    return BF16 if trainer.config.bf16 or trainer.config.fp16 else None


def _sum_over_data_parallel(value: int, device: torch.device) -> int:
    total = torch.tensor([value], dtype=torch.int64, device=device)
    dist.all_reduce(total, group=parallel_state.get_data_parallel_group())
    return int(total.item())


def _worst_rank(count: Tensor | None, device: torch.device) -> int:
    """The largest count of any rank, on every rank (those without the loss give None)."""
    largest = torch.zeros((), dtype=torch.int64, device=device) if count is None else count.clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest.item())
