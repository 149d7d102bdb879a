"""Let megatron-core run on CPUs: the few places where it takes a CUDA device for granted.

`install()` is a no-op where CUDA is available, so that one program serves both. What it changes,
and why nothing less will do:

* `torch.cuda` attributes that megatron-core reads (current device, generators, streams) answer for
  the CPU. With `default_generators` handing out torch's own generator, megatron-core's RNG tracker
  works as it stands; CPU and "GPU" randomness are then one stream, so data code must own its
  generators.
* Tensor factories, `Tensor.cuda`, `Tensor.to` and `Tensor.type` map a `cuda` device to the CPU. A
  `TorchFunctionMode` would be shorter but autograd pops it during backward, where activation
  recompute allocates.
* `torch.compile` (megatron-core's `jit_fuser`) runs eagerly: no compiler is needed on the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import platform
import time
from collections.abc import Callable
from typing import Any

import torch

from fixedcode_megatron import cpu_operations

CPU = torch.device("cpu")
_FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange", "empty_like", "zeros_like")
_installed = False


class _SingleGenerator(tuple):
    """Stands in for `torch.cuda.default_generators`: every index is torch's CPU generator."""

    def __getitem__(self, index: Any) -> Any:
        return torch.default_generator


class _Stream:
    """A stream on which everything has already happened."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...
    def synchronize(self) -> None: ...
    def wait_stream(self, _stream: Any) -> None: ...
    def wait_event(self, _event: Any) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    def __hash__(self) -> int:
        return 0


class _Event:
    """An event that remembers when it was recorded (milliseconds between two of them)."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self._recorded = 0.0

    def record(self, _stream: Any = None) -> None:
        self._recorded = time.perf_counter()

    def elapsed_time(self, other: _Event) -> float:
        return (other._recorded - self._recorded) * 1e3

    def synchronize(self) -> None: ...
    def wait(self, _stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True


def install() -> bool:
    """Make megatron-core usable on this machine's CPUs; call before building anything.

    Returns
    -------
    bool
        True if the platform was installed now, False where CUDA is available or it already was.
    """
    global _installed
    if _installed or torch.cuda.is_available():
        return False
    _installed = True
    # First of all: this imports dynamo, which refuses one function under two torch names.
    torch.compiler.set_stance("force_eager")
    _install_cuda_namespace()
    _install_device_mapping()
    # The RNG tracker warns that "CPU RNG state changed": here that is by design.
    logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)
    _install_megatron_fixes()
    cpu_operations.install()
    return True


def _install_cuda_namespace() -> None:
    def no_op() -> Callable[..., None]:
        # A new function each time: dynamo refuses one object under names with different rules.
        return lambda *_args, **_kwargs: None

    current = _Stream()
    replacements: dict[str, Any] = {
        "current_device": lambda: CPU,
        "device_count": lambda: 1,
        "set_device": no_op(),
        "synchronize": no_op(),
        "empty_cache": no_op(),
        "Stream": _Stream,
        "Event": _Event,
        "current_stream": lambda *_args: current,
        "default_stream": lambda *_args: current,
        "stream": lambda _stream: contextlib.nullcontext(),
        "default_generators": _SingleGenerator((0,)),
        "_initialized": True,
    }
    for name, value in replacements.items():
        setattr(torch.cuda, name, value)
    torch.cuda.random.current_device = replacements["current_device"]  # imported there by name
    torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop = no_op(), no_op()


def _is_cuda(device: Any) -> bool:
    return isinstance(device, str | torch.device) and str(device).startswith("cuda")


def _without_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return function(*args, **kwargs)

    return wrapper


def _install_device_mapping() -> None:
    for name in _FACTORIES:
        setattr(torch, name, _without_cuda(getattr(torch, name)))

    tensor: Any = torch.Tensor
    original_to, original_type = tensor.to, tensor.type

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        args = tuple(CPU if _is_cuda(value) else value for value in args)
        kwargs = {name: CPU if _is_cuda(value) else value for name, value in kwargs.items()}
        return original_to(self, *args, **kwargs)

    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # The optimizers sort parameters by names such as 'torch.cuda.FloatTensor'.
        if args or kwargs:
            return original_type(self, *args, **kwargs)
        return "torch.cuda." + original_type(self).rsplit(".", 1)[1]

    tensor.cuda = lambda self, *_args, **_kwargs: self
    tensor.to, tensor.type = to, type_


def _install_megatron_fixes() -> None:
    """Names that megatron-core uses without importing them where Transformer Engine is absent."""
    import megatron.core.tensor_parallel.random as mcore_random

    if not hasattr(mcore_random, "FP8GlobalStateManager"):

        class NoFP8:
            @staticmethod
            def is_fp8_enabled() -> bool:
                return False

        def null_context(*_args: Any, **_kwargs: Any) -> Any:
            return contextlib.nullcontext()

        mcore_random.FP8GlobalStateManager = NoFP8
        mcore_random.fp8_autocast = mcore_random.activation_recompute_forward = null_context


def keep_allocated_memory() -> None:
    """Tell glibc to keep freed memory for the next allocation instead of returning it.

    By default every large tensor is a fresh `mmap`, and faulting its pages in costs more than most
    element-wise operations on it. Elsewhere than glibc this does nothing.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # M_* of <malloc.h>
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_max, 0)
    libc.mallopt(trim_threshold, 2**31 - 1)
    libc.mallopt(top_pad, 64 * 2**20)
