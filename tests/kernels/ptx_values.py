"""Register values of the PTX interpreter: uint64, one a thread."""

from __future__ import annotations

import numpy as np

U64 = np.uint64
WARP = 32
Values = np.ndarray


class PtxFault(AssertionError):
    """The program did what no correct program does."""


def mask_to(values: Values, width: int) -> Values:
    return values if width == 64 else values & U64((1 << width) - 1)


def sign_extend(values: Values, width: int) -> Values:
    """Return int64 values of the low `width` bits read as two's complement."""
    shift = np.int64(64 - width)
    return (values.astype(np.int64) << shift) >> shift
