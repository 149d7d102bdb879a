"""Fixed token codes: what a token id becomes instead of a row of a trained table.

Canonical code (paper A, eq. 2): c(t)_j = floor(t / 2^j) mod 2, bit 0 the lowest.
Affine recoding (eq. 3): c~(t) = A c(t) xor b with A invertible over GF(2).
Lift to the model width (eq. 4): element i of x(t) shows code bit i mod K.

Everything here is plain torch and the reference that the fast kernels are compared with.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import torch

from fixedcode_megatron import code_checks, gf2, splitmix
from fixedcode_megatron.code_checks import MAX_BITS, MAX_RANDOM_COLUMNS, minimal_bits
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.gf2 import load_matrix

__all__ = ["MAX_BITS", "MAX_RANDOM_COLUMNS", "TokenCode", "load_matrix", "minimal_bits"]

Kind = Literal["binary", "gf2", "random"]
Lift = Literal["tile", "interleave"]

DEFAULT_SEED = 12345
_TABLE_CHUNK = 65536  # ids whose codes `table` holds at a time


class Look(TypedDict, total=False):
    """How code bits appear in the input vector: options that every kind of code takes."""

    scale: float
    offset: float
    lift: Lift
    allow_partial_tile: bool


@dataclass(frozen=True, kw_only=True)
class TokenCode:
    """Everything that fixes the input vectors of a model, as an immutable, hashable value.

    Use `TokenCode.binary`, `TokenCode.gf2` or `TokenCode.random`. Two codes are equal, and have
    the same fingerprint, when all their fields are.

    Attributes
    ----------
    kind : "binary", "gf2" or "random"
    vocab_size : int
        V, 2 to 2**31.
    num_bits : int
        K, the code width (for a random code: its number of columns).
    row_masks : tuple of K ints, or None
        Row j of A: output bit j is the parity of `row_masks[j] & id`. None means the unit matrix.
    shift : int
        b: bit j is XORed to output bit j.
    scale, offset : float
        A code bit shows as `offset + scale * bit`, computed in FP32, rounded once to the output
        type. For a random code `offset + scale * r` with r in [-1, 1), two FP32 operations.
    lift : "tile" or "interleave"
        Element i of the input vector shows code column `i % K` or `i // (hidden_size / K)`.
    allow_partial_tile : bool
        Whether the last tile may be cut off when K does not divide the width.
    seed : int or None
        Seed of a random code. A GF(2) code is its matrix, however that was made.
    version : int
        Version of these rules.
    """

    kind: Kind
    vocab_size: int
    num_bits: int
    row_masks: tuple[int, ...] | None = None
    shift: int = 0
    scale: float = 1.0
    offset: float = 0.0
    lift: Lift = "tile"
    allow_partial_tile: bool = False
    seed: int | None = None
    version: int = 1

    # ------------------------------------------------------------------ construction

    def __post_init__(self) -> None:
        for name, value in code_checks.normalised(self).items():
            object.__setattr__(self, name, value)
        code_checks.check_fields(self)
        if self.kind != "random":
            self.bit_values()

    @classmethod
    def binary(
        cls,
        vocab_size: int,
        *,
        num_bits: int | None = None,
        shift: int = 0,
        **look: Unpack[Look],
    ) -> TokenCode:
        """The canonical code: the binary digits of the id, lowest first, XORed with `shift`."""
        num_bits = minimal_bits(vocab_size) if num_bits is None else num_bits
        return cls(kind="binary", vocab_size=vocab_size, num_bits=num_bits, shift=shift, **look)

    @classmethod
    def gf2(
        cls,
        vocab_size: int,
        *,
        seed: int = DEFAULT_SEED,
        matrix: npt.ArrayLike | None = None,
        num_bits: int | None = None,
        shift: int = 0,
        **look: Unpack[Look],
    ) -> TokenCode:
        """The canonical code times an invertible GF(2) matrix, XORed with `shift`.

        The matrix is drawn from `seed` by `gf2.draw_invertible`, or given as a [K, K] array of 0
        and 1 whose row j makes output bit j and whose column i belongs to input bit i; then
        `seed` plays no part.
        """
        rows = None if matrix is None else gf2.from_array(matrix)
        if rows is not None:
            code_checks.check_matrix_size(len(rows), vocab_size, num_bits)
            num_bits = len(rows)
        # This refuses all that does not fit before a matrix is drawn.
        plain = cls.binary(vocab_size, num_bits=num_bits, shift=shift, **look)
        if rows is None:
            code_checks.check_seed(seed)
            rows = gf2.draw_invertible(plain.num_bits, seed)
        return replace(plain, kind="gf2", row_masks=rows)

    @classmethod
    def random(
        cls,
        vocab_size: int,
        *,
        seed: int = DEFAULT_SEED,
        num_bits: int | None = None,
        **look: Unpack[Look],
    ) -> TokenCode:
        """A control: K random numbers a token, uniform in [-1, 1) (`splitmix.uniform`)."""
        num_bits = minimal_bits(vocab_size) if num_bits is None else num_bits
        return cls(kind="random", vocab_size=vocab_size, num_bits=num_bits, seed=seed, **look)

    # ------------------------------------------------------------------ ids and codes

    def encode(self, ids: Any, *, check: bool = False) -> torch.Tensor:
        """The codes of token ids as integers, bit j of the integer being code bit j.

        Parameters
        ----------
        ids : integer tensor of any shape, or what `torch.as_tensor` makes one of
        check : bool
            Refuse ids outside 0..V-1, naming value and position. Without it the result is that of
            the id's K lowest bits in two's complement, `id mod 2**K`.

        Returns
        -------
        int64 tensor of the same shape
        """
        self._need_bits()
        bits = self._ids(ids, check) & ((1 << self.num_bits) - 1)
        return _apply(self.row_masks, bits) ^ self.shift

    def decode(self, codes: Any, *, check: bool = True) -> torch.Tensor:
        """The token ids whose codes these are; the inverse of `encode`.

        With `check`, codes that belong to no token raise `UserError` naming value and position;
        otherwise they give the number in V..2**K-1 that they would belong to.
        """
        self._need_bits()
        codes = code_checks.integers(codes, "codes")
        ids = _apply(self._inverse_masks, (codes & ((1 << self.num_bits) - 1)) ^ self.shift)
        if check:
            wrong = (ids >= self.vocab_size) | (codes >> self.num_bits != 0)
            code_checks.refuse(codes, wrong, f"the code of no id below {self.vocab_size}")
        return ids

    def bits(self, ids: Any, *, check: bool = False) -> torch.Tensor:
        """The code bits of ids [...]: uint8 [..., K] of 0 and 1."""
        codes = self.encode(ids, check=check)
        places = torch.arange(self.num_bits, dtype=torch.int64, device=codes.device)
        return ((codes.unsqueeze(-1) >> places) & 1).to(torch.uint8)

    def values(self, ids: Any, *, check: bool = False) -> torch.Tensor:
        """The code's K columns for ids [...], with scale and offset: float32 [..., K]."""
        if self.kind == "random":
            assert self.seed is not None
            numbers = splitmix.uniform(self._ids(ids, check), self.num_bits, self.seed)
            return numbers.mul_(self.scale).add_(self.offset)
        zero, one = self.bit_values()
        bits = self.bits(ids, check=check)
        pair = torch.tensor([zero, one], dtype=torch.float32, device=bits.device)
        return pair[bits.int()]

    def bit_values(self, dtype: torch.dtype = torch.float32) -> tuple[float, float]:
        """What a code bit of 0 and one of 1 show as, rounded to `dtype`.

        Raises
        ------
        UserError
            If they overflow, or coincide and so lose the code.
        """
        self._need_bits()
        with np.errstate(over="ignore", invalid="ignore"):
            zero = np.float32(self.offset)
            pair = [float(zero), float(zero + np.float32(self.scale))]
        if dtype != torch.float32:
            pair = torch.tensor(pair, dtype=torch.float32).to(dtype).tolist()
        if pair[0] == pair[1] or not all(map(math.isfinite, pair)):
            raise UserError(
                f"--code-scale {self.scale} --code-offset {self.offset}: bits 0 and 1 show as "
                f"{pair[0]} and {pair[1]} in {dtype}; two different finite values are needed"
            )
        return pair[0], pair[1]

    # ------------------------------------------------------------------ input vectors

    def embed(
        self,
        ids: Any,
        hidden_size: int,
        dtype: torch.dtype = torch.float32,
        *,
        check: bool = False,
    ) -> torch.Tensor:
        """The input vectors of ids [...]: [..., hidden_size] of a floating `dtype`."""
        columns = self.lift_index(hidden_size)
        if self.kind != "random":
            self.bit_values(dtype)
        values = self.values(ids, check=check).to(dtype)
        return values[..., columns.to(values.device)]

    def table(self, hidden_size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The input vectors of all tokens, [V, hidden_size]: the table that nobody needs."""
        self.check_width(hidden_size)
        table = torch.empty(self.vocab_size, hidden_size, dtype=dtype)
        for start in range(0, self.vocab_size, _TABLE_CHUNK):
            rows = table[start : start + _TABLE_CHUNK]
            rows.copy_(self.embed(torch.arange(start, start + len(rows)), hidden_size, dtype))
        return table

    def lift_index(self, hidden_size: int) -> torch.Tensor:
        """The code column that each element of the input vector shows: int64 [hidden_size]."""
        self.check_width(hidden_size)
        elements = torch.arange(hidden_size, dtype=torch.int64)
        if self.lift == "interleave":
            return elements // (hidden_size // self.num_bits)
        return elements % self.num_bits

    def check_width(self, hidden_size: int) -> None:
        """Refuse a width that the code does not divide, naming what would work instead."""
        whole_tiles = hidden_size % self.num_bits == 0 or self.allow_partial_tile
        if hidden_size < self.num_bits or not whole_tiles:
            raise UserError(code_checks.width_advice(self, hidden_size))

    # ------------------------------------------------------------------ identity

    def matrix(self) -> npt.NDArray[np.uint8]:
        """A as a uint8 array [K, K]: entry [j, i] is what input bit i adds to output bit j."""
        self._need_bits()
        return gf2.to_array(self.row_masks or gf2.identity(self.num_bits))

    def to_json(self) -> str:
        """The code as canonical JSON: sorted keys, no blanks."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> TokenCode:
        """Read what `to_json` wrote; unknown or missing keys are refused."""
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"the token code is not valid JSON: {error}") from error
        names = {field.name for field in fields(cls)}
        if not isinstance(found, dict) or set(found) != names:
            raise UserError(f"a token code has the keys {sorted(names)}, found {found!r}")
        return cls(**found)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of `to_json`, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    # ------------------------------------------------------------------ helpers

    @cached_property
    def _inverse_masks(self) -> tuple[int, ...] | None:
        return None if self.row_masks is None else gf2.inverse(self.row_masks)

    def _need_bits(self) -> None:
        if self.kind == "random":
            raise UserError("a random code has no bits; it has values")

    def _ids(self, ids: Any, check: bool) -> torch.Tensor:
        ids = code_checks.integers(ids, "token ids")
        if check:
            wrong = (ids < 0) | (ids >= self.vocab_size)
            code_checks.refuse(ids, wrong, f"outside 0..{self.vocab_size - 1}")
        return ids


def _apply(rows: Sequence[int] | None, vectors: torch.Tensor) -> torch.Tensor:
    """Multiply int64 bit vectors by a GF(2) matrix, XORing the columns whose bits are set."""
    if rows is None:
        return vectors
    result = torch.zeros_like(vectors)
    for place, column in enumerate(gf2.transpose(rows)):
        result ^= -((vectors >> place) & 1) & column
    return result
