"""SplitMix64, the one random generator behind fixed codes, written out so that it never changes.

The generator (Steele, Lea and Flood, 2014) adds an odd constant to a 64-bit state and scrambles the
result. Output number n of a stream therefore has a closed form, `mix64(start + (n + 1) * GAMMA)`,
which lets `uniform` compute any element of a random code on its own, on any device.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

MASK64 = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
COLUMN_BITS = 16


def mix64(value: int) -> int:
    """Scramble a 64-bit unsigned integer; a bijection."""
    value &= MASK64
    value = ((value ^ (value >> _SHIFTS[0])) * _MULTIPLIERS[0]) & MASK64
    value = ((value ^ (value >> _SHIFTS[1])) * _MULTIPLIERS[1]) & MASK64
    return value ^ (value >> _SHIFTS[2])


def stream(seed: int) -> Iterator[int]:
    """Yield the 64-bit unsigned outputs of SplitMix64 whose state starts at `seed`."""
    state = seed & MASK64
    while True:
        state = (state + GAMMA) & MASK64
        yield mix64(state)


def uniform(ids: torch.Tensor, num_columns: int, seed: int) -> torch.Tensor:
    """Random numbers in [-1, 1) that depend on id, column and seed alone.

    With `start = mix64(seed + GAMMA)` and `n = (id mod 2**32) * 2**16 + column`, the number is
    `top24(mix64(start + (n + 1) * GAMMA)) * 2**-23 - 1`: an exact multiple of 2**-23, hence exact
    in FP32. It does not depend on `num_columns`.

    Parameters
    ----------
    ids : int64 tensor [...]
    num_columns : int
        1 to 2**16.
    seed : int
        0 to 2**64 - 1.

    Returns
    -------
    float32 tensor [..., num_columns]
    """
    columns = torch.arange(num_columns, dtype=torch.int64, device=ids.device)
    state = ((ids & 0xFFFFFFFF) << COLUMN_BITS).unsqueeze(-1) + columns
    # int64 arithmetic wraps, so signed constants give the bits of unsigned arithmetic.
    state = state.add_(1).mul_(_signed(GAMMA)).add_(_signed(mix64(seed + GAMMA)))
    state = state.bitwise_xor_(_logical_shift(state, _SHIFTS[0])).mul_(_signed(_MULTIPLIERS[0]))
    state = state.bitwise_xor_(_logical_shift(state, _SHIFTS[1])).mul_(_signed(_MULTIPLIERS[1]))
    state = state.bitwise_xor_(_logical_shift(state, _SHIFTS[2]))
    return (_logical_shift(state, 40) - (1 << 23)).to(torch.float32) * 2.0**-23


def _signed(value: int) -> int:
    value &= MASK64
    return value - (1 << 64) if value >> 63 else value


def _logical_shift(value: torch.Tensor, count: int) -> torch.Tensor:
    """Shift int64 right as if it were unsigned."""
    return (value >> count) & ((1 << (64 - count)) - 1)
