"""The C structures of csrc/token_code.h as ctypes, and their values for a `Lift`."""

from __future__ import annotations

import ctypes
import functools

from fixedcode_kernels.spec import Lift, bit_patterns, column_masks

MAX_ROWS = 2**31 - 1024  # the kernels count rows in 32 bits, a block beyond the last


class CodeStruct(ctypes.Structure):
    """``fc_code``: what stays the same from call to call."""

    _fields_ = (
        ("num_bits", ctypes.c_uint32),
        ("hidden", ctypes.c_uint32),
        ("group", ctypes.c_uint32),
        ("element_bytes", ctypes.c_uint32),
        ("mask", ctypes.c_uint32),
        ("shift", ctypes.c_uint32),
        ("affine", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("low", ctypes.c_uint64),
        ("high", ctypes.c_uint64),
        ("column", ctypes.c_uint32 * 32),
        ("row", ctypes.c_uint32 * 32),
    )


class CallStruct(ctypes.Structure):
    """``fc_call``: pointers, strides and sizes of one call."""

    _fields_ = (
        ("ids", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("stride_b", ctypes.c_int64),
        ("stride_s", ctypes.c_int64),
        ("seq_start", ctypes.c_int64),
        ("batch", ctypes.c_uint32),
        ("rows", ctypes.c_uint32),
        ("id_bytes", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


# What every launcher takes after the code: ids, out, strides, seq_start, batch, rows, id_bytes.
CALL_ARGUMENTS = (
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_uint32,
    ctypes.c_uint32,
    ctypes.c_uint32,
)


@functools.lru_cache(maxsize=256)
def code_struct(lift: Lift) -> CodeStruct:
    """Return the filled structure for `lift`; never write to it, it is cached."""
    low, high = bit_patterns(lift.scale, lift.offset, lift.dtype)
    zeros = (0,) * 32
    columns = column_masks(lift.row_masks) if lift.row_masks else ()
    return CodeStruct(
        num_bits=lift.num_bits,
        hidden=lift.hidden_size,
        group=lift.group,
        element_bytes=lift.dtype.itemsize,
        mask=(1 << lift.num_bits) - 1,
        shift=lift.shift,
        affine=bool(lift.row_masks),
        low=low,
        high=high,
        column=(columns + zeros)[:32],
        row=(lift.row_masks + zeros)[:32],
    )


@functools.lru_cache(maxsize=256)
def code_pointer(lift: Lift) -> tuple[int, CodeStruct]:
    """Return the structure's address, and the structure, which keeps the address alive."""
    struct = code_struct(lift)
    return ctypes.addressof(struct), struct


def check_rows(rows: int) -> None:
    """Raise ValueError when one call holds more tokens than the kernels count."""
    if rows > MAX_ROWS:
        raise ValueError(f"{rows} tokens in one call; the kernels take up to {MAX_ROWS}")
