"""What Triton and nvcc make of the kernels for sm_90, without a GPU."""

from __future__ import annotations

import ctypes
import functools
import re
import struct
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kernel_cases import Call
from ptx_machine import WARP, Machine, PtxFault, Region
from ptx_parser import Entry, parse

from fixedcode_kernels import build, native
from fixedcode_kernels.cuda_kernel import FLAGS, find_nvcc
from fixedcode_kernels.spec import Lift

CUDA_BLOCK = 256
SHAPES = {"tile_16": 0, "tile": 1, "interleave": 2, "elementwise": 3}


@functools.cache
def triton_compiled(lift: Lift, id_type: torch.dtype, stride_type: str = "i32") -> Any:
    """Return Triton's compilation of the shipped configuration (``.asm["ptx"]``, ``["cubin"]``)."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from fixedcode_kernels import triton_kernel

    kernel = triton_kernel.token_code_kernel
    constants = triton_kernel.constants(lift)
    packed = lift.dtype.itemsize * constants["PER_WORD"] == 4
    types = dict.fromkeys(kernel.arg_names, "i32") | {
        "ids_ptr": "*i64" if id_type == torch.int64 else "*i32",
        "out_ptr": "*i32" if packed else "*i16",
        "stride_b": stride_type,
        "stride_s": stride_type,
    }
    types |= dict.fromkeys(constants, "constexpr")
    aligned = {(n,): [["tt.divisibility", 16]] for n in range(2)}  # as PyTorch's pointers are
    source = ASTSource(kernel, types, constexprs=constants, attrs=aligned)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return triton.compile(
            source,
            target=GPUTarget("cuda", 90, WARP),
            options={"num_warps": triton_kernel.NUM_WARPS},
        )


def triton_entry(lift: Lift, id_type: torch.dtype, stride_type: str = "i32") -> Entry:
    """Return the only entry of Triton's PTX."""
    (entry,) = parse(triton_compiled(lift, id_type, stride_type).asm["ptx"]).values()
    return entry


@functools.cache
def nvcc_output(*flags: str) -> bytes:
    """Return what nvcc makes of the CUDA source with these flags (``-ptx`` or ``-cubin``)."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        source = build.SOURCES / "token_code_cuda.cu"
        command = [find_nvcc(), *FLAGS, *flags, "-o", out, source]
        subprocess.run(command, check=True, capture_output=True)
        return out.read_bytes()


@functools.cache
def nvcc_entries() -> dict[tuple[int, bool, str], Entry]:
    """Return the entries of nvcc's PTX by (element bytes, affine, shape)."""
    entries = {}
    names = {value: name for name, value in SHAPES.items()}
    for name, entry in parse(nvcc_output("-arch=compute_90", "-ptx").decode()).items():
        size, affine, shape = re.search(r"Li(\d)ELb(\d)ELi(\d)E", name).groups()
        entries[int(size), affine == "1", names[int(shape)]] = entry
    return entries


def nvcc_entry(lift: Lift) -> Entry:
    """Return the entry that the launcher would choose for an aligned output."""
    size = lift.dtype.itemsize
    if lift.hidden_size * size % 16:
        shape = "elementwise"
    elif lift.interleave:
        shape = "interleave"
    else:
        shape = "tile_16" if lift.num_bits == 16 else "tile"
    return nvcc_entries()[size, bool(lift.row_masks), shape]


def _triton_arguments(entry: Entry, lift: Lift, pointers, sizes, strides, stride_type="i32"):
    """Return the kernel's parameters; sizes are (rows, batch, seq_start), strides (b, s)."""
    from fixedcode_kernels import triton_kernel

    arguments = [struct.pack("<Q", pointer) for pointer in pointers]
    integers = (*triton_kernel.runtime_values(lift), *sizes)
    arguments += [struct.pack("<i", value) for value in integers]
    arguments += [struct.pack("<i" if stride_type == "i32" else "<q", step) for step in strides]
    return arguments + [bytes(8)] * (len(entry.parameters) - len(arguments))  # Triton's scratch


def _nvcc_arguments(lift: Lift, pointers, sizes, strides, id_bytes: int):
    rows, batch, seq_start = sizes
    fields = native.CallStruct(*pointers, *strides, seq_start, batch, rows, id_bytes, 0)
    return [bytes(native.code_struct(lift)), bytes(fields)]


def _grid(lift: Lift, rows: int, kind: str) -> tuple[int, int]:
    """Return (rows per block, threads per block) of a backend's launcher."""
    if kind == "nvcc":
        return CUDA_BLOCK // WARP, CUDA_BLOCK
    from fixedcode_kernels import triton_kernel

    return triton_kernel.BLOCK_ROWS, WARP * triton_kernel.NUM_WARPS


def _execute(entry: Entry, call: Call, arguments_for, grid: int, block: int):
    """Execute with exactly the call's tensors in memory; return (output, machine)."""
    ids, out = call.ids, call.output()
    span = sum((n - 1) * step for n, step in zip(ids.shape, ids.stride(), strict=True)) + 1
    id_bytes = (ctypes.c_uint8 * (span * ids.element_size())).from_address(ids.data_ptr())
    output = Region("out", out.data_ptr(), out.view(torch.uint8).numpy().reshape(-1), True)
    machine = Machine(
        entry, [output, Region("ids", ids.data_ptr(), np.frombuffer(id_bytes, np.uint8))]
    )
    machine.run(grid, block, arguments_for((ids.data_ptr(), out.data_ptr())))
    if not (output.written == 1).all():
        raise PtxFault("a byte of the output was not written exactly once")
    return out, machine


def run_triton(entry: Entry, call: Call, stride_type: str = "i32") -> tuple[torch.Tensor, Machine]:
    """Execute Triton's PTX on a call; return (output, machine)."""
    sizes = (call.rows, call.ids.size(0), call.seq_start)
    per_block, block = _grid(call.lift, call.rows, "triton")
    return _execute(
        entry,
        call,
        lambda pointers: _triton_arguments(
            entry, call.lift, pointers, sizes, call.ids.stride(), stride_type
        ),
        -(-call.rows // per_block),
        block,
    )


def run_nvcc(entry: Entry, call: Call, blocks: int | None = None) -> tuple[torch.Tensor, Machine]:
    """Execute nvcc's PTX on a call, with any number of blocks; return (output, machine)."""
    sizes = (call.rows, call.ids.size(0), call.seq_start)
    per_block, block = _grid(call.lift, call.rows, "nvcc")
    return _execute(
        entry,
        call,
        lambda pointers: _nvcc_arguments(
            call.lift, pointers, sizes, call.ids.stride(), call.ids.element_size()
        ),
        blocks or -(-call.rows // per_block),
        block,
    )


def run_last_block(
    kind: str, lift: Lift, ids: torch.Tensor, rows: int, stride: int
) -> torch.Tensor:
    """Execute only the last block of a call with `rows` tokens [1, rows], int64, `stride` apart.

    `ids` are the tokens of that block. Memory holds nothing but them (at most one if they lie
    apart) and the block's rows, at the addresses where they belong; so no large tensor is needed
    to see whether 64-bit offsets are right.
    """
    ids_base, out_base = 0x1000_0000_0000, 0x6000_0000_0000
    per_block, block = _grid(lift, rows, kind)
    first = (rows - 1) // per_block * per_block
    out = torch.empty(rows - first, lift.hidden_size, dtype=lift.dtype)
    row_bytes = lift.hidden_size * lift.dtype.itemsize
    output = Region(
        "out", out_base + first * row_bytes, out.view(torch.uint8).numpy().reshape(-1), True
    )
    source = Region("ids", ids_base + first * stride * 8, ids.numpy().view(np.uint8))
    pointers, sizes, strides = (ids_base, out_base), (rows, 1, 0), (0, stride)
    if kind == "nvcc":
        entry = nvcc_entry(lift)
        arguments = _nvcc_arguments(lift, pointers, sizes, strides, 8)
    else:
        entry = triton_entry(lift, torch.int64, "i64")
        arguments = _triton_arguments(entry, lift, pointers, sizes, strides, "i64")
    machine = Machine(entry, [output, source])
    machine.run(first // per_block + 1, block, arguments, first_block=first // per_block)
    if not (output.written == 1).all():
        raise PtxFault("a byte of the output was not written exactly once")
    return out
