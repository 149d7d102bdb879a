"""Which backend runs: the first that works on the device, and the reasons why others do not."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fixedcode_kernels.spec import Lift, make_lift

Fill = Callable[[Tensor, Tensor, Lift, int], None]

# In order of preference. A backend's module is imported, and its compiler called, only when its
# turn comes, so that importing the package stays cheap.
PREFERENCE = {"cpu": ("cpu", "table"), "cuda": ("triton", "cuda", "table")}
MODULES = {
    "reference": "fixedcode_kernels.reference",
    "table": "fixedcode_kernels.table",
    "cpu": "fixedcode_kernels.cpu",
    "triton": "fixedcode_kernels.triton_kernel",
    "cuda": "fixedcode_kernels.cuda_kernel",
}
ENVIRONMENT_VARIABLE = "FIXEDCODE_KERNELS_BACKEND"

_forced: list[str] = []
_chosen: dict[str, Fill] = {}


class Backend(NamedTuple):
    """One line of `backends()`."""

    device: str
    name: str
    chosen: bool
    reason: str

    def __str__(self) -> str:
        mark = "*" if self.chosen else " "
        return f"{mark} {self.device:5s} {self.name:10s} {self.reason}"


def backends() -> tuple[Backend, ...]:
    """Return every backend per device in order of preference, and why it is used or not.

    Builds what can be built, so the first call may take seconds.
    """
    report = []
    for device, names in PREFERENCE.items():
        forced = _forced_name()
        usable: list[str] = []
        for name in (forced,) if forced else names:
            reason = _unavailable(name, device)
            if reason is None:
                usable.append(name)
                first = name == usable[0]
                reason = "in use" if first else f"works; {usable[0]} comes first"
            report.append(Backend(device, name, usable[:1] == [name], reason))
    return tuple(report)


def chosen_fill(device_type: str) -> Fill:
    """Return the fill function that serves tensors on `device_type`."""
    fill = _chosen.get(device_type)
    if fill is None:
        fill = _chosen[device_type] = _choose(device_type)
    return fill


def _forced_name() -> str | None:
    name = _forced[-1] if _forced else os.environ.get(ENVIRONMENT_VARIABLE)
    if name and name not in MODULES:
        raise ValueError(f"backend is {name!r}; known are {', '.join(MODULES)}")
    return name or None


def _choose(device_type: str) -> Fill:
    forced = _forced_name()
    reasons = []
    for name in (forced,) if forced else PREFERENCE[device_type]:
        reason = _unavailable(name, device_type)
        if reason is None:
            return _fill_of(name)
        reasons.append(f"{name}: {reason}")
    raise RuntimeError(f"no token-code backend for {device_type} tensors ({'; '.join(reasons)})")


def _fill_of(name: str) -> Fill:
    fill: Fill = importlib.import_module(MODULES[name]).fill
    return fill


@functools.cache
def _unavailable(name: str, device: str) -> str | None:
    """Return why backend `name` cannot serve `device` here, None if it can."""
    if name not in (*PREFERENCE[device], "reference"):
        return f"does not serve {device} tensors"
    if device == "cuda" and not torch.cuda.is_available():
        return "no CUDA device"
    try:
        module = importlib.import_module(MODULES[name])
        reason: str | None = getattr(module, "unavailable", lambda: None)()
        if reason is None:
            _try_out(module.fill, device)
    except Exception as error:  # whatever a foreign package or compiler does, the next one serves
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return reason


def _try_out(fill: Fill, device: str) -> None:
    """Run one token through a backend: Triton, say, finds its C compiler missing only then."""
    lift = make_lift(3, 8, torch.float32, (), 0, 1.0, 0.0, False)
    ids = torch.tensor([[5]], device=device)
    out = torch.zeros(1, 1, 8, dtype=torch.float32, device=device)
    fill(ids, out, lift, 0)
    if out.flatten().tolist() != [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]:
        raise RuntimeError(f"wrong values for id 5: {out.flatten().tolist()}")


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Force one backend inside a ``with`` block (tests and benchmarks).

    The environment variable FIXEDCODE_KERNELS_BACKEND does the same for a whole process.
    """
    if name not in MODULES:
        raise ValueError(f"backend is {name!r}; known are {', '.join(MODULES)}")
    _forced.append(name)
    _chosen.clear()
    try:
        yield
    finally:
        _forced.pop()
        _chosen.clear()
