"""CPU backend: the C++ SIMD kernel, built on first use where a compiler exists."""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fixedcode_kernels.build import BuildError, build_library, find_compiler
from fixedcode_kernels.forks import in_child
from fixedcode_kernels.native import CALL_ARGUMENTS, check_rows, code_pointer
from fixedcode_kernels.spec import Lift

_COMMON = ("-O3", "-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti")
_SOURCE = "{src}/token_code_cpu.cpp"
_LINK = ("-shared", "{object}", "-o", "{out}")
# The first that builds and loads is used. OpenMP is linked in the second variant only: in the
# first, its symbols are those of the OpenMP runtime that torch has loaded already, so both share
# one pool of threads.
_VARIANTS = (
    ("-march=native", "-fopenmp", ()),
    ("-march=native", "-fopenmp", ("-fopenmp",)),
    ("-mcpu=native", "-fopenmp", ()),
    ("-march=native", None, ()),
    (None, None, ()),
)
# A thread is worth starting for this many bytes of output.
_BYTES_PER_THREAD = 128 * 1024


@functools.cache
def _library() -> ctypes.CDLL | str:
    """Return the loaded library, or the reason why there is none."""
    if sys.platform == "win32":
        return "the C++ kernel is built on Linux and macOS only"
    compiler = find_compiler("CXX", "g++", "clang++", "c++")
    if compiler is None:
        return "no C++ compiler found (CXX, g++, clang++, c++)"
    reason = ""
    for tuning, openmp, link in _VARIANTS:
        flags = [flag for flag in (*_COMMON, tuning, openmp) if flag]
        steps = ([*flags, "-c", _SOURCE, "-o", "{object}"], [*link, *_LINK])
        try:
            return _load(build_library("token_code_cpu", compiler, steps, native=True))
        except (BuildError, OSError, AttributeError) as error:
            reason = reason or str(error)
    return reason


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.fc_cpu_fill.restype = None
    library.fc_cpu_fill.argtypes = (ctypes.c_void_p, *CALL_ARGUMENTS, ctypes.c_int)
    return library


def unavailable() -> str | None:
    """Return why the kernel cannot run on this machine, None if it can."""
    library = _library()
    return library if isinstance(library, str) else None


@functools.cache
def _function() -> Any:
    library = _library()
    if isinstance(library, str):
        raise RuntimeError(library)
    return library.fc_cpu_fill


def fill(ids: Tensor, out: Tensor, lift: Lift, seq_start: int) -> None:
    """Write ``out [s_local, b, h]`` (contiguous) from ``ids [b, s]``."""
    positions, batch, _ = out.shape
    rows = positions * batch
    check_rows(rows)
    threads = 1 if in_child() else torch.get_num_threads()
    threads = min(threads, out.nbytes // _BYTES_PER_THREAD, rows)
    stride_b, stride_s = ids.stride()
    _function()(
        code_pointer(lift)[0],
        ids.data_ptr(),
        out.data_ptr(),
        stride_b,
        stride_s,
        seq_start,
        batch,
        rows,
        ids.element_size(),
        threads,
    )
