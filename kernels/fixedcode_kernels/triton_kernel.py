"""Triton backend: one program writes a few rows as packed 32-bit words.

The code's matrix and shift are compile-time constants, so the only load is the token id and nothing
is copied to the device. A pair of bits becomes a packed pair of 16-bit values by one multiplication
and one XOR: ``(b0 | b1 << 16) * delta ^ low``, where delta is the XOR of the two values' patterns.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from fixedcode_kernels import table
from fixedcode_kernels.native import check_rows
from fixedcode_kernels.spec import Lift, bit_patterns, column_masks

# Shipped configuration: 4 rows a program and one warp need the fewest instructions per store.
BLOCK_ROWS = 4
SMALLEST_BLOCK_WORDS = 128
NUM_WARPS = 1
RUNTIME_INTEGERS = ["low", "delta", "rows", "batch", "seq_start", "stride_b", "stride_s"]


@triton.jit(do_not_specialize=RUNTIME_INTEGERS)
def token_code_kernel(  # type: ignore[no-untyped-def]
    ids_ptr,
    out_ptr,
    low,
    delta,
    rows,
    batch,
    seq_start,
    stride_b,
    stride_s,
    COLUMNS: tl.constexpr,
    SHIFT: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    WORDS: tl.constexpr,
    PER_WORD: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    inside = row < rows
    position = row // batch
    sample = (row - position * batch).to(tl.int64)
    at = sample * stride_b + (position.to(tl.int64) + seq_start) * stride_s
    token = tl.load(ids_ptr + at, mask=inside, other=0).to(tl.uint32)
    if len(COLUMNS) == 0:
        code = token ^ SHIFT
    else:
        code = (token & 0) ^ SHIFT
        for k in tl.static_range(BITS):
            code ^= ((token >> k) & 1) * COLUMNS[k]
    low = low.to(tl.uint32)
    delta = delta.to(tl.uint32)
    out_row = out_ptr + row.to(tl.int64)[:, None] * WORDS
    # Under the tile lift a word's first element shows `column`; the code repeated once holds the
    # next element's bit beside it, so that one shift fetches both.
    code = code & ((1 << BITS) - 1)
    # (With all 32 bits in use there is no such next element: pairs start at even columns.)
    repeated = code[:, None]
    if BITS < 32:
        repeated = repeated | (repeated << BITS)
    column = (tl.arange(0, BLOCK_WORDS) * PER_WORD) % BITS
    STEP: tl.constexpr = (BLOCK_WORDS * PER_WORD) % BITS
    for first in range(0, WORDS, BLOCK_WORDS):
        word = first + tl.arange(0, BLOCK_WORDS)
        if GROUP == 0:
            bits = repeated >> column.to(tl.uint32)[None, :]
            # 8001h copies bit 1 to bit 16: bits 0 and 16 are then those of the two elements
            bits = ((bits & 3) * 0x8001) & 0x10001 if PER_WORD == 2 else bits & 1
            if STEP != 0:
                column = tl.where(column + STEP >= BITS, column + STEP - BITS, column + STEP)
        else:
            bits = _grouped_bit(code, word * PER_WORD, GROUP)
            if PER_WORD == 2:
                bits |= _grouped_bit(code, word * PER_WORD + 1, GROUP) << 16
        value = (bits * delta) ^ low
        mask = inside[:, None]
        if WORDS % BLOCK_WORDS != 0:
            mask = mask & (word < WORDS)[None, :]
        tl.store(out_row + word[None, :], value.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _grouped_bit(code, element, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the bit that each element of each row shows under the interleave lift, uint32."""
    return (code[:, None] >> (element // GROUP).to(tl.uint32)[None, :]) & 1


def _block_words(words: int) -> int:
    """Return how many words of a row a program writes at once: a power of two.

    The largest that leaves hardly a sixteenth of the work to words beyond the row; 128 words are
    one 16-byte store per lane.
    """
    if words <= SMALLEST_BLOCK_WORDS:
        return 1 << (words - 1).bit_length()
    sizes = (1024, 512, 256, SMALLEST_BLOCK_WORDS)
    return next((n for n in sizes if 16 * (-words % n) <= words), SMALLEST_BLOCK_WORDS)


def constants(lift: Lift, packed: bool = True) -> dict[str, object]:
    """Return the kernel's compile-time constants for `lift`; `packed` allows 32-bit words."""
    packed = packed and lift.dtype.itemsize == 2 and lift.hidden_size % 2 == 0
    per_word = 2 if packed else 1
    words = lift.hidden_size // per_word
    return {
        "COLUMNS": column_masks(lift.row_masks) if lift.row_masks else (),
        "SHIFT": lift.shift,
        "BITS": lift.num_bits,
        "GROUP": lift.group,
        "WORDS": words,
        "PER_WORD": per_word,
        "BLOCK_ROWS": BLOCK_ROWS,
        "BLOCK_WORDS": _block_words(words),
    }


def _signed32(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


def runtime_values(lift: Lift) -> tuple[int, int]:
    """Return (low, delta) as signed 32-bit integers: packed pattern of 0, XOR of both patterns."""
    low, high = bit_patterns(lift.scale, lift.offset, lift.dtype)
    delta = low ^ high
    return _signed32(low | low << 16 if lift.dtype.itemsize == 2 else low), _signed32(delta)


@functools.lru_cache(maxsize=256)
def _plan(lift: Lift, packed: bool) -> tuple[dict[str, object], tuple[int, int], torch.dtype]:
    plan = constants(lift, packed)
    whole = plan["PER_WORD"] == 2 or lift.dtype.itemsize == 4
    return plan, runtime_values(lift), torch.int32 if whole else torch.int16


def arguments(
    ids: Tensor, out: Tensor, lift: Lift, seq_start: int
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the kernel's positional arguments and its compile-time constants for one call."""
    positions, batch, _ = out.shape
    rows = positions * batch
    check_rows(rows)
    packed = out.storage_offset() % 2 == 0 and out.data_ptr() % 4 == 0
    plan, (low, delta), word_type = _plan(lift, packed)
    stride_b, stride_s = ids.stride()
    words = out.view(-1).view(word_type)  # flat: a dimension of one may have any stride
    return (ids, words, low, delta, rows, batch, seq_start, stride_b, stride_s), plan


def launch(ids: Tensor, out: Tensor, lift: Lift, seq_start: int, **overrides: object) -> None:
    """Start the kernel on the current device and stream; `overrides` change its constants."""
    positional, plan = arguments(ids, out, lift, seq_start)
    if overrides:
        plan = {**plan, **overrides}
    rows = out.size(0) * out.size(1)
    grid = (triton.cdiv(rows, plan["BLOCK_ROWS"]),)
    token_code_kernel[grid](*positional, **plan, num_warps=NUM_WARPS)


def fill(ids: Tensor, out: Tensor, lift: Lift, seq_start: int) -> None:
    """Write ``out [s_local, b, h]`` (contiguous) from ``ids [b, s]``, on the ids' own device."""
    if lift.dtype == torch.float64:
        return table.fill(ids, out, lift, seq_start)
    with torch.cuda.device(ids.device):
        launch(ids, out, lift, seq_start)
