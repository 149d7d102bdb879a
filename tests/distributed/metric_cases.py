"""What one rank holds and sends in a step, counted on the real objects."""

from __future__ import annotations

import types
from dataclasses import asdict
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.distributed.cases import _trainer, random_batches


class Collectives(TorchDispatchMode):
    """Counts what goes through torch.distributed: calls, and bytes of the largest argument.

    Groups of one rank do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d" and _group_size(args) > 1:
            tensors = [[t for t in tree_leaves(a) if isinstance(t, torch.Tensor)] for a in args]
            self.calls += 1
            self.size += max(sum(t.nbytes for t in group) for group in tensors)
        return func(*args, **(kwargs or {}))


def _group_size(args: Any) -> int:
    handle = next(a for a in args if isinstance(a, torch.ScriptObject))
    return torch.distributed.ProcessGroup.unbox(handle).size()


def held_and_sent(argv: list[str]) -> tuple[dict[str, int], dict[str, int] | None]:
    """Bytes that this rank holds and sends in a step; and the savings that the run would report."""
    from fixedcode_megatron.training.savings import savings
    from fixedcode_megatron.training.step import run_microbatches

    trainer = _trainer(argv)
    parameters = [p for model in trainer.models for p in model.parameters()]
    with Collectives() as forward_backward:
        batches = random_batches(trainer)
        run_microbatches(trainer, [batches], num_microbatches=trainer.num_evaluation_microbatches)
    with Collectives() as update:
        trainer.optimizer.step()
    inner = [o.optimizer for o in trainer.optimizer.chained_optimizers]
    moments = [
        value
        for optimizer in inner
        for state in optimizer.state.values()
        for value in state.values()
        if value.dim()
    ]
    reported = savings(trainer)
    return {
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(p.nbytes for p in parameters),
        "gradient_bytes": sum(p.main_grad.nbytes for p in parameters),
        "optimizer_bytes": sum(value.nbytes for value in moments),
        "calls": forward_backward.calls,
        "sent": forward_backward.size,
        "sent_in_update": update.size,
    }, None if reported is None else asdict(reported)


class FakeNvml:
    """Counters of a GPU that draws 100 W x (rank + 1)."""

    NVMLError = RuntimeError
    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2

    def __init__(self, rank: int) -> None:
        self.rank, self.millijoules = rank, 5_000_000

    def nvmlDeviceGetTotalEnergyConsumption(self, _handle: Any) -> int:
        self.millijoules += 1000 * (self.rank + 1)
        return self.millijoules

    def nvmlDeviceGetPowerUsage(self, _handle: Any) -> int:
        return 100_000 * (self.rank + 1)

    def nvmlDeviceGetUtilizationRates(self, _handle: Any) -> Any:
        return types.SimpleNamespace(gpu=50 + self.rank)

    def nvmlDeviceGetTemperature(self, _handle: Any, _sensor: int) -> int:
        return 60 + self.rank

    def nvmlDeviceGetClockInfo(self, _handle: Any, clock: int) -> int:
        return 1000 * clock - self.rank


def monitor_reports(tokens: int, *, without_energy_on: int | None = None) -> list[dict[str, Any]]:
    """Two reports of a monitor that reads the fake counters."""
    import torch.distributed as dist

    from fixedcode_megatron.training.nvml import DeviceMonitor

    rank = dist.get_rank()
    library: Any = FakeNvml(rank)
    if rank == without_energy_on:
        library = None
    monitor = DeviceMonitor(library, None, torch.device("cpu"), dist.get_world_size())
    return [monitor.report(tokens), monitor.report(tokens)]
