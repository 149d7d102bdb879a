"""Linear algebra over GF(2): the field of 0 and 1 in which addition is XOR.

A K x K matrix is kept as its K rows, each an integer ("row mask"): bit i of `rows[j]` is the entry
in row j, column i. A vector is an integer whose bit i is component i, so that component j of A x is
the parity of `rows[j] & x`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fixedcode_megatron import splitmix
from fixedcode_megatron.errors import UserError

Rows = tuple[int, ...]


def identity(size: int) -> Rows:
    """The rows of the unit matrix."""
    return tuple(1 << i for i in range(size))


def multiply(rows: Sequence[int], vector: int) -> int:
    """The product A x of a matrix and a vector."""
    return sum(((mask & vector).bit_count() & 1) << j for j, mask in enumerate(rows))


def transpose(rows: Sequence[int]) -> Rows:
    """The rows of the transpose of a square matrix, which are its columns."""
    return tuple(
        sum(((mask >> i) & 1) << j for j, mask in enumerate(rows)) for i in range(len(rows))
    )


def rank(rows: Sequence[int]) -> int:
    """The dimension of the space that the rows span."""
    basis: list[int] = []
    for row in rows:
        for pivot in basis:  # clears the leading bit of `pivot` in `row` where it is set
            row = min(row, row ^ pivot)
        if row:
            basis.append(row)
    return len(basis)


def inverse(rows: Sequence[int]) -> Rows:
    """The rows of the inverse of a square matrix, by Gauss-Jordan elimination.

    Raises
    ------
    UserError
        If the matrix is singular; the message says its rank.
    """
    size = len(rows)
    work = [row | (1 << (size + j)) for j, row in enumerate(rows)]  # [A | I], A in the low bits
    for i in range(size):
        pivot = next((j for j in range(i, size) if (work[j] >> i) & 1), None)
        if pivot is None:
            raise UserError(f"the {size} x {size} matrix has no inverse: its rank is {rank(rows)}")
        work[i], work[pivot] = work[pivot], work[i]
        for j in range(size):
            if j != i and (work[j] >> i) & 1:
                work[j] ^= work[i]
    return tuple(row >> size for row in work)


def weight_bounds(size: int) -> tuple[int, int]:
    """Least and greatest Hamming weight that `draw_invertible` allows in a row or a column.

    The bounds are 1.5 standard deviations of the weight of a random row about its mean,
    `|w - K/2| <= 0.75 sqrt(K)`, and never below 1: (1, 1) for K = 1, (1, 2) for K = 2 and 3,
    (2, 6) for K = 8, (5, 11) for K = 16, (12, 20) for K = 32.
    """
    allowed = [w for w in range(1, size + 1) if 4 * (2 * w - size) ** 2 <= 9 * size]
    return allowed[0], allowed[-1]


def draw_invertible(size: int, seed: int) -> Rows:
    """Draw an invertible matrix whose rows and columns have weights within `weight_bounds`.

    The procedure is part of the definition of a GF(2) code and must never change: rows are the top
    K bits of successive outputs of `splitmix.stream(seed)`, skipping those whose weight is out of
    bounds; K such rows make a candidate; the first candidate that is invertible and whose columns
    all have weights within bounds is the result.
    """
    low, high = weight_bounds(size)
    candidates = (output >> (64 - size) for output in splitmix.stream(seed))
    good_rows = (row for row in candidates if low <= row.bit_count() <= high)
    while True:
        rows = tuple(itertools.islice(good_rows, size))
        columns_fit = all(low <= column.bit_count() <= high for column in transpose(rows))
        if columns_fit and rank(rows) == size:
            return rows


def to_array(rows: Sequence[int]) -> npt.NDArray[np.uint8]:
    """A matrix as a uint8 array [K, K] of 0 and 1."""
    size = len(rows)
    return np.array([[(mask >> i) & 1 for i in range(size)] for mask in rows], dtype=np.uint8)


def from_array(matrix: npt.ArrayLike) -> Rows:
    """The rows of a matrix given as a [K, K] array of 0 and 1.

    Raises
    ------
    UserError
        If it is not square, has an entry other than 0 and 1, or is singular.
    """
    try:
        array = np.asarray(matrix)
    except ValueError:
        raise UserError("--code-matrix: the rows of the matrix differ in length") from None
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise UserError(f"--code-matrix: a K x K matrix is needed, found shape {array.shape}")
    if array.dtype.kind not in "buif":
        raise UserError(f"--code-matrix: entries must be 0 or 1, found type {array.dtype}")
    wrong = np.argwhere((array != 0) & (array != 1))
    if len(wrong):
        row, column = (int(i) for i in wrong[0])
        raise UserError(
            f"--code-matrix: entries must be 0 or 1, found {array[row, column]} "
            f"in row {row}, column {column} (counted from 0)"
        )
    rows = tuple(sum(int(bit) << i for i, bit in enumerate(line)) for line in array)
    if rank(rows) < len(rows):
        raise UserError(
            f"--code-matrix: the {len(rows)} x {len(rows)} matrix is singular over GF(2): its rank "
            f"is {rank(rows)}, and an invertible one (rank {len(rows)}) is needed"
        )
    return rows


def load_matrix(path: str | Path) -> npt.NDArray[np.uint8]:
    """Read an invertible 0/1 matrix [K, K] from a file.

    Row j holds the coefficients of output bit j; column i belongs to input bit i; bit 0 is the
    lowest. `.npy` is NumPy's format, `.json` a list of lists; any other file is read as text, one
    row a line, entries separated by blanks or commas, `#` starting a comment.

    Raises
    ------
    UserError
        If the file cannot be read or does not hold such a matrix; the message names the file.
    """
    path = Path(path)
    try:
        if path.suffix == ".npy":
            matrix: npt.ArrayLike = np.load(path, allow_pickle=False)
        elif path.suffix == ".json":
            matrix = json.loads(path.read_text(encoding="utf-8"))
        else:
            matrix = _parse_text(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--code-matrix {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise UserError(f"--code-matrix {path}: not a readable matrix: {error}") from error
    try:
        return to_array(from_array(matrix))
    except UserError as error:
        raise UserError(str(error).replace("--code-matrix", f"--code-matrix {path}", 1)) from None


def _parse_text(text: str) -> list[list[int]]:
    lines = (line.split("#", 1)[0].replace(",", " ").split() for line in text.splitlines())
    return [[int(entry) for entry in line] for line in lines if line]
