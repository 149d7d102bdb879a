"""What the GPU says of itself through NVML: power, energy, utilisation, temperature, clocks."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)

FIELDS = (
    "power per GPU (W)",
    "energy (J)",
    "tokens per joule",
    "GPU utilisation (%)",
    "hottest GPU (C)",
    "slowest SM clock (MHz)",
    "slowest memory clock (MHz)",
)


class DeviceMonitor:
    """Reads this rank's GPU at each report; on a machine without NVML every figure is None.

    Energy is the difference of the GPU's own counter between two reports, summed over all ranks:
    evaluation and checkpoints between them included.

    Parameters
    ----------
    library, handle
        NVML's Python module (nvidia-ml-py) and the handle of this rank's GPU in it.
    """

    def __init__(self, library: Any, handle: Any, device: torch.device, world_size: int) -> None:
        self._library, self._handle = library, handle
        self._device, self._world_size = device, world_size
        self._millijoules = self._energy()

    def report(self, tokens: int) -> dict[str, float | None]:
        """Figures since the last report; every rank must call it.

        Parameters
        ----------
        tokens
            Trained on by all ranks together since the last report.
        """
        values = self._read()
        missing = torch.tensor([values is None], dtype=torch.float64, device=self._device)
        sums = torch.zeros(3, dtype=torch.float64, device=self._device)
        lowest = torch.zeros(3, dtype=torch.float64, device=self._device)
        if values is not None:
            watts, joules, percent, celsius, sm_clock, memory_clock = values
            sums += torch.tensor([watts, joules, percent], device=self._device)
            lowest += torch.tensor([-celsius, sm_clock, memory_clock], device=self._device)
        sums = torch.cat([sums, missing])
        dist.all_reduce(sums)
        if sums[3].item():
            return dict.fromkeys(FIELDS)
        dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
        watts, joules, percent = sums[:3].tolist()
        figures = [
            watts / self._world_size,
            joules,
            tokens / joules if joules else None,
            percent / self._world_size,
            -lowest[0].item(),
            *lowest[1:].tolist(),
        ]
        return dict(zip(FIELDS, figures, strict=True))

    def _energy(self) -> int | None:
        if self._library is None:
            return None
        try:
            return self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except self._library.NVMLError:  # a GPU before Volta, or a virtual one
            return None

    def _read(self) -> list[float] | None:
        before, self._millijoules = self._millijoules, self._energy()
        if before is None or self._millijoules is None:
            return None
        nvml, handle = self._library, self._handle
        try:
            return [
                nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
                (self._millijoules - before) / 1e3,
                nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
                nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            ]
        except nvml.NVMLError:
            return None


def open_monitor(device: torch.device, world_size: int) -> DeviceMonitor:
    """The monitor of this rank's GPU; one that reads nothing where there is no NVML."""
    library = handle = None
    if device.type == "cuda":
        try:
            library = importlib.import_module("pynvml")
            library.nvmlInit()
            # By its UUID: NVML does not know CUDA_VISIBLE_DEVICES.
            uuid = torch.cuda.get_device_properties(device).uuid
            handle = library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except ImportError:
            logger.info("power and energy are not reported: pip install nvidia-ml-py")
            library = None
        except library.NVMLError as error:  # type: ignore[union-attr]
            logger.warning("power and energy are not reported: %s", error)
            library = None
    return DeviceMonitor(library, handle, device, world_size)
