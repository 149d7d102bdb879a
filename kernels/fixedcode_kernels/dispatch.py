"""Which backend runs: the first that works on the device, and the reasons why others do not."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator

from torch import Tensor

from fixedcode_kernels.spec import Lift

Fill = Callable[[Tensor, Tensor, Lift, int], None]

# In order of preference. Each module offers fill() and unavailable() -> reason or None; a module
# is imported only when its turn comes, so that importing the package stays cheap.
PREFERENCE = {"cpu": ("reference",), "cuda": ("reference",)}
MODULES = {"reference": "fixedcode_kernels.reference"}
ENVIRONMENT_VARIABLE = "FIXEDCODE_KERNELS_BACKEND"

_forced: list[str] = []
_chosen: dict[str, Fill] = {}


def _unavailable(name: str) -> str | None:
    """Return why backend `name` cannot run here, None if it can."""
    try:
        module = importlib.import_module(MODULES[name])
    except ImportError as error:
        return f"import failed: {error}"
    reason: str | None = getattr(module, "unavailable", lambda: None)()
    return reason


def chosen_fill(device_type: str) -> Fill:
    """Return the fill function that serves tensors on `device_type`."""
    fill = _chosen.get(device_type)
    if fill is None:
        fill = _chosen[device_type] = _choose(device_type)
    return fill


def _choose(device_type: str) -> Fill:
    forced = _forced[-1] if _forced else os.environ.get(ENVIRONMENT_VARIABLE)
    names = PREFERENCE.get(device_type, ("reference",))
    if forced:
        if forced not in MODULES:
            raise ValueError(f"backend is {forced!r}; known are {', '.join(MODULES)}")
        names = (forced,)
    reasons = []
    for name in names:
        reason = _unavailable(name)
        if reason is None:
            fill: Fill = importlib.import_module(MODULES[name]).fill
            return fill
        reasons.append(f"{name}: {reason}")
    raise RuntimeError(f"no token-code backend for {device_type} tensors ({'; '.join(reasons)})")


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
