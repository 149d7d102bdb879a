"""What a token code accepts, and what it says when it does not.

Apart from `codes` so that the code itself stays readable; users need nothing from here.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fixedcode_megatron import gf2, splitmix
from fixedcode_megatron.errors import UserError

if TYPE_CHECKING:
    from fixedcode_megatron.codes import TokenCode

VERSION = 1
MAX_VOCAB_SIZE = 2**31
MAX_BITS = 32  # one more than any id needs: widths such as 4096 have no divisor from 17 to 31
MAX_RANDOM_COLUMNS = 2**splitmix.COLUMN_BITS


def minimal_bits(vocab_size: int) -> int:
    """The least code width that tells `vocab_size` tokens apart, ceil(log2 V) (Proposition 1)."""
    return max(1, (vocab_size - 1).bit_length())


def bits_range(kind: str, vocab_size: int) -> tuple[int, int]:
    """The least and the greatest width K of a code of this kind."""
    return (1, MAX_RANDOM_COLUMNS) if kind == "random" else (minimal_bits(vocab_size), MAX_BITS)


def normalised(code: TokenCode) -> dict[str, Any]:
    """The fields of a code as plain Python values, so that equal codes have equal JSON.

    Raises
    ------
    UserError
        If one has the wrong type.
    """
    fields: dict[str, Any] = {
        name: _integer(name, getattr(code, name))
        for name in ("vocab_size", "num_bits", "shift", "version")
    }
    if code.seed is not None:
        fields["seed"] = _integer("seed", code.seed)
    if code.row_masks is not None:
        if not isinstance(code.row_masks, Sequence):
            raise UserError(f"token code: row_masks must be integers, found {code.row_masks!r}")
        fields["row_masks"] = tuple(_integer("row_masks", mask) for mask in code.row_masks)
    for name in ("scale", "offset"):
        fields[name] = _number(name, getattr(code, name))
    if not isinstance(code.allow_partial_tile, bool):
        raise UserError(
            f"token code: allow_partial_tile must be true or false, "
            f"found {code.allow_partial_tile!r}"
        )
    return fields


def check_fields(code: TokenCode) -> None:
    """Raise `UserError` unless the fields of a code go together."""
    if code.version != VERSION:
        raise UserError(f"token code version {code.version}: this program knows {VERSION}")
    if code.kind not in ("binary", "gf2", "random"):
        raise UserError(f"token code kind {code.kind!r}: choose binary, gf2 or random")
    if not 2 <= code.vocab_size <= MAX_VOCAB_SIZE:
        raise UserError(f"vocab_size must be between 2 and 2**31, found {code.vocab_size}")
    least, most = bits_range(code.kind, code.vocab_size)
    if not least <= code.num_bits <= most:
        raise UserError(
            f"--code-bits {code.num_bits}: a {code.kind} code of {code.vocab_size} tokens needs "
            f"{least} to {most}"
        )
    if code.lift not in ("tile", "interleave"):
        raise UserError(f"--code-lift {code.lift!r}: choose tile or interleave")
    if code.allow_partial_tile and code.lift != "tile":
        raise UserError("--code-allow-partial-tile: only --code-lift tile has a last tile")
    if code.kind == "random":
        _check_random(code)
    else:
        _check_affine_map(code)


def _check_random(code: TokenCode) -> None:
    if code.row_masks is not None or code.shift:
        raise UserError("a random code has no bits: leave out --code-matrix and --code-shift")
    check_seed(code.seed)
    with np.errstate(over="ignore", under="ignore"):
        scale, offset = np.float32(code.scale), np.float32(code.offset)
    if scale == 0 or not np.isfinite(scale) or not np.isfinite(offset):
        raise UserError(
            f"--code-scale {code.scale} --code-offset {code.offset}: finite FP32 numbers are "
            "needed, and a scale other than 0"
        )


def _check_affine_map(code: TokenCode) -> None:
    bits, rows = code.num_bits, code.row_masks
    if code.seed is not None:
        raise UserError(f"a {code.kind} code keeps no seed, found {code.seed}")
    if not 0 <= code.shift < 1 << bits:
        raise UserError(
            f"--code-shift {code.shift} does not fit the code's {bits} bits: "
            f"choose 0 to {(1 << bits) - 1}"
        )
    if (rows is None) != (code.kind == "binary"):
        raise UserError("a gf2 code has row masks and a binary code has none")
    if rows is None:
        return
    if len(rows) != bits or not all(0 <= row < 1 << bits for row in rows):
        raise UserError(f"row masks: {bits} rows of {bits} bits are needed, found {rows}")
    if gf2.rank(rows) < bits:
        raise UserError(f"row masks: rank {bits} is needed, found {gf2.rank(rows)}")


def check_matrix_size(size: int, vocab_size: int, num_bits: int | None) -> None:
    """Raise `UserError` unless a matrix fits the vocabulary and the code width asked for."""
    least = minimal_bits(vocab_size)
    if num_bits is not None and size != num_bits:
        raise UserError(
            f"--code-matrix is {size} x {size} but --code-bits is {num_bits}: leave out "
            f"--code-bits or give {size}"
        )
    if not least <= size <= MAX_BITS:
        raise UserError(
            f"--code-matrix is {size} x {size}: {vocab_size} tokens need {least} to {MAX_BITS} bits"
        )


def check_seed(seed: int | None) -> None:
    """Raise `UserError` unless the seed is a 64-bit unsigned integer."""
    if seed is None or not 0 <= seed <= splitmix.MASK64:
        raise UserError(f"--code-seed must be between 0 and 2**64 - 1, found {seed}")


def width_advice(code: TokenCode, hidden_size: int) -> str:
    """Say that the code does not divide a width, and which codes and widths would go together."""
    bits = code.num_bits
    least, most = bits_range(code.kind, code.vocab_size)
    divisors = [k for k in range(least, min(most, hidden_size) + 1) if hidden_size % k == 0]
    if len(divisors) > 8:  # a random code may take nearly any width: keep those near its own
        divisors = sorted(sorted(divisors, key=lambda k: abs(k - bits))[:8])
    below, above = hidden_size // bits * bits, -(-hidden_size // bits) * bits
    widths = [str(width) for width in (below, above) if width]
    advice = [f"--code-bits {', '.join(map(str, divisors))}"] if divisors else []
    advice.append(f"--hidden-size {' or '.join(widths)}")
    if hidden_size > bits and code.lift == "tile":
        advice.append("--code-allow-partial-tile")
    return (
        f"--hidden-size {hidden_size} is not a multiple of the code width {bits}; "
        f"what would work: {'; '.join(advice)}"
    )


def integers(values: Any, what: str) -> torch.Tensor:
    """The values as an int64 tensor; `UserError` if they are not integers."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"{what} must be 64-bit integers: {error}") from error
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if not whole and tensor.numel():
        raise UserError(f"{what} must be integers, found {tensor.dtype}")
    return tensor.to(torch.int64)


def refuse(values: torch.Tensor, wrong: torch.Tensor, why: str) -> None:
    """Raise `UserError` naming the first value that is wrong and its position."""
    if wrong.any():
        position = tuple(wrong.nonzero()[0].tolist())
        raise UserError(f"{values[position].item()} at position {position} is {why}")


def _integer(name: str, value: Any) -> int:
    try:
        return int(operator.index(value))
    except TypeError:
        raise UserError(f"token code: {name} must be an integer, found {value!r}") from None


def _number(name: str, value: Any) -> float:
    try:
        return float(value) + 0.0  # makes 0.0 of -0.0
    except (TypeError, ValueError):
        raise UserError(f"token code: {name} must be a number, found {value!r}") from None
