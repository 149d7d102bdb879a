"""CUDA C++ backend: built by nvcc on first use into a library with a C ABI, loaded with ctypes."""

from __future__ import annotations

import ctypes
import functools
import os

import torch
from torch import Tensor

from fixedcode_kernels import table
from fixedcode_kernels.build import BuildError, build_library, find_compiler
from fixedcode_kernels.native import CALL_ARGUMENTS, check_rows, code_pointer
from fixedcode_kernels.spec import Lift

FLAGS = ("-O3", "-std=c++17")
_OUTPUT = ("-shared", "-Xcompiler", "-fPIC", "-o", "{out}", "{src}/token_code_cuda.cu")
# Machine code for A100-class and Hopper GPUs, PTX for those to come; an nvcc that does not know
# Hopper builds the second set.
ARCHITECTURES = (
    ("80,code=sm_80", "90a,code=sm_90a", "90,code=compute_90"),
    ("80,code=sm_80", "80,code=compute_80"),
)


def find_nvcc() -> str | None:
    """Return nvcc's path: $CUDACXX, the PATH, $CUDA_HOME or the usual folder."""
    folders = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [os.path.join(folder, "bin", "nvcc") for folder in folders if folder]
    return find_compiler("CUDACXX", "nvcc", *candidates)


@functools.cache
def library() -> ctypes.CDLL | str:
    """Return the loaded library, or the reason why there is none. Needs nvcc, but no GPU."""
    nvcc = find_nvcc()
    if nvcc is None:
        return "nvcc not found (CUDACXX, PATH, CUDA_HOME)"
    reason = ""
    for architectures in ARCHITECTURES:
        targets = [f"-gencode=arch=compute_{name}" for name in architectures]
        try:
            path = build_library("token_code_cuda", nvcc, [[*FLAGS, *targets, *_OUTPUT]])
            return _load(str(path))
        except (BuildError, OSError, AttributeError) as error:
            reason = reason or str(error)
    return reason


def _load(path: str) -> ctypes.CDLL:
    loaded = ctypes.CDLL(path)
    loaded.fc_cuda_fill.restype = ctypes.c_int
    loaded.fc_cuda_fill.argtypes = (
        ctypes.c_void_p,
        *CALL_ARGUMENTS,
        ctypes.c_int,
        ctypes.c_void_p,
    )
    loaded.fc_cuda_error.restype = ctypes.c_char_p
    loaded.fc_cuda_error.argtypes = (ctypes.c_int,)
    return loaded


def unavailable() -> str | None:
    """Return why the kernel cannot run on this machine, None if it can."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    loaded = library()
    return loaded if isinstance(loaded, str) else None


def fill(ids: Tensor, out: Tensor, lift: Lift, seq_start: int) -> None:
    """Write ``out [s_local, b, h]`` (contiguous) from ``ids [b, s]``, on the ids' own device."""
    if lift.dtype == torch.float64:
        return table.fill(ids, out, lift, seq_start)
    loaded = library()
    if isinstance(loaded, str):
        raise RuntimeError(loaded)
    positions, batch, _ = out.shape
    rows = positions * batch
    check_rows(rows)
    stride_b, stride_s = ids.stride()
    error = loaded.fc_cuda_fill(
        code_pointer(lift)[0],
        ids.data_ptr(),
        out.data_ptr(),
        stride_b,
        stride_s,
        seq_start,
        batch,
        rows,
        ids.element_size(),
        ids.device.index,
        torch.cuda.current_stream(ids.device).cuda_stream,
    )
    if error:
        raise RuntimeError(f"CUDA error {error}: {loaded.fc_cuda_error(error).decode()}")
