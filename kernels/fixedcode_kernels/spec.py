"""What the op computes, as plain values that every backend shares.

The specification, for ids ``[b, s]`` and an output ``[s_local, b, h]``:

    code(id)      = A (id mod 2^K) xor shift         over GF(2), K bits, bit 0 first
    column(i)     = i mod K        (lift "tile")     or   i // (h / K)   (lift "interleave")
    out[t, n, i]  = round(offset + scale * bit_{column(i)}(code(ids[n, seq_start + t])))

The sum is taken in FP32 and rounded once, to nearest even, to the output dtype. An id outside
``[0, 2^K)`` therefore counts modulo 2^K (two's complement), the same for int32 and int64.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

MAX_BITS = 32  # widths such as 4096 have no divisor from 17 to 31
MAX_HIDDEN = 2**31 - 1
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_INTEGER_VIEW = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_FLOAT32_MAX = 3.4028234663852886e38


class CodeLike(Protocol):
    """What the op reads from a code; `fixedcode_megatron.codes.TokenCode` has it all."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def num_bits(self) -> int: ...
    @property
    def row_masks(self) -> tuple[int, ...] | None: ...
    @property
    def shift(self) -> int: ...
    @property
    def scale(self) -> float: ...
    @property
    def offset(self) -> float: ...
    @property
    def lift(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class CodeSpec:
    """The smallest object that satisfies `CodeLike`, for use without fixedcode_megatron.

    Attributes
    ----------
    vocab_size : int
        Ids run from 0 to ``vocab_size - 1``; only the optional id check reads it.
    num_bits : int
        K, 1 to 32.
    row_masks : tuple of int or None
        Row j of A as an integer: output bit j is the parity of ``row_masks[j] & id``. None is the
        identity.
    shift : int
        b, XORed to the code.
    scale, offset : float
        A bit becomes ``offset + scale * bit``.
    lift : {"tile", "interleave"}
    """

    vocab_size: int
    num_bits: int
    row_masks: tuple[int, ...] | None = None
    shift: int = 0
    scale: float = 1.0
    offset: float = 0.0
    lift: str = "tile"


class Lift(NamedTuple):
    """All that a backend needs besides ids and output; hashable, so plans are cached by it."""

    num_bits: int
    hidden_size: int
    dtype: torch.dtype
    row_masks: tuple[int, ...]
    shift: int
    scale: float
    offset: float
    interleave: bool

    @property
    def group(self) -> int:
        """Equal neighbours per column under the interleave lift, 0 under the tile lift."""
        return self.hidden_size // self.num_bits if self.interleave else 0


@functools.lru_cache(maxsize=256)
def make_lift(
    num_bits: int,
    hidden_size: int,
    dtype: torch.dtype,
    row_masks: tuple[int, ...],
    shift: int,
    scale: float,
    offset: float,
    interleave: bool,
) -> Lift:
    """Check the values and return the `Lift`; raises ValueError naming the value that is wrong."""
    if not 1 <= num_bits <= MAX_BITS:
        raise ValueError(f"num_bits is {num_bits}; a token code has 1 to {MAX_BITS} bits")
    if not 1 <= hidden_size <= MAX_HIDDEN:
        raise ValueError(f"hidden_size is {hidden_size}; it must lie in 1 .. {MAX_HIDDEN}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype}; use one of {', '.join(map(str, DTYPES))}")
    limit = 1 << num_bits
    if row_masks and len(row_masks) != num_bits:
        raise ValueError(f"row_masks has {len(row_masks)} rows; the code has {num_bits} bits")
    for j, mask in enumerate(row_masks):
        if not 0 <= mask < limit:
            raise ValueError(f"row_masks[{j}] is {mask}; it must lie in 0 .. {limit - 1}")
    if not 0 <= shift < limit:
        raise ValueError(f"shift is {shift}; it must lie in 0 .. {limit - 1}")
    for name, value in (("scale", scale), ("offset", offset)):
        if not math.isfinite(value) or abs(value) > _FLOAT32_MAX:
            raise ValueError(f"{name} is {value}; it must be a finite FP32 number")
    if interleave and hidden_size % num_bits:
        raise ValueError(
            f"lift 'interleave' needs a hidden_size that num_bits divides; {hidden_size} is not a "
            f"multiple of {num_bits} (lift 'tile' allows a partial last tile)"
        )
    return Lift(num_bits, hidden_size, dtype, row_masks, shift, scale, offset, interleave)


@functools.lru_cache(maxsize=256)
def bit_values(scale: float, offset: float, dtype: torch.dtype) -> torch.Tensor:
    """The two element values, for bit 0 and bit 1, as a CPU tensor ``[2]`` of `dtype`."""
    bits = torch.tensor([0.0, 1.0], dtype=torch.float32, device="cpu")
    scale32 = torch.tensor(scale, dtype=torch.float32, device="cpu")
    offset32 = torch.tensor(offset, dtype=torch.float32, device="cpu")
    return (offset32 + scale32 * bits).to(dtype)


@functools.lru_cache(maxsize=256)
def bit_patterns(scale: float, offset: float, dtype: torch.dtype) -> tuple[int, int]:
    """The two element values as unsigned integers of the dtype's width."""
    mask = (1 << (8 * dtype.itemsize)) - 1
    low, high = bit_values(scale, offset, dtype).view(_INTEGER_VIEW[dtype.itemsize]).tolist()
    return low & mask, high & mask


def column_masks(row_masks: tuple[int, ...]) -> tuple[int, ...]:
    """Transpose A: its column k as an integer; ``A id`` is the XOR of the columns of id's bits."""
    k = len(row_masks)
    return tuple(sum((row_masks[j] >> c & 1) << j for j in range(k)) for c in range(k))
