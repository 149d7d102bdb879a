"""`--data-path` and `--split`: what they say, checked before anything is built."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fixedcode_megatron.data.indexed import bin_path, idx_path
from fixedcode_megatron.errors import UserError

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Blend:
    """Datasets to draw from.

    Attributes
    ----------
    prefixes
        Paths without extension.
    weights
        Share of samples of each, adding up to 1; None for one dataset or to take every dataset
        once, in proportion to its size.
    """

    prefixes: tuple[str, ...]
    weights: tuple[float, ...] | None


def parse_blend(values: Sequence[str], flag: str = "--data-path") -> Blend:
    """Parse `PREFIX`, `PREFIX PREFIX ...` or `WEIGHT PREFIX WEIGHT PREFIX ...`.

    Raises
    ------
    UserError
        If weights and prefixes do not alternate, a weight is not positive, a prefix occurs twice
        or carries .bin or .idx, or a file is missing.
    """
    values = [value.strip() for value in values]
    if not values:
        raise UserError(f"{flag} is empty: give a prefix, or weights and prefixes by turns")
    numbers = [_weight(value) for value in values]
    weighted = numbers[0] is not None
    if weighted:
        prefixes = _alternating(values, numbers, flag)
        weights = [w for w in numbers[::2] if w is not None]
        for weight, prefix in zip(weights, prefixes, strict=True):
            if not (math.isfinite(weight) and weight > 0):
                raise UserError(f"{flag}: weight {weight:g} of {prefix} must be above 0")
    else:
        prefixes = values
        for value, number in zip(values[1:], numbers[1:], strict=True):
            if number is not None:
                raise UserError(
                    f"{flag} {' '.join(values)}: {value} looks like a weight, but {values[0]} has "
                    f"none before it: give all datasets a weight, or none"
                )
    _check_prefixes(prefixes, flag)
    if not weighted or len(prefixes) == 1:
        return Blend(tuple(prefixes), None)
    total = sum(weights)
    return Blend(tuple(prefixes), tuple(weight / total for weight in weights))


def _weight(value: str) -> float | None:
    """The number, or None where the value is a path (also one called like a number)."""
    try:
        number = float(value)
    except ValueError:
        return None
    return None if idx_path(value).exists() else number


def _alternating(values: list[str], numbers: list[float | None], flag: str) -> list[str]:
    for position, (value, number) in enumerate(zip(values, numbers, strict=True)):
        if (number is None) == (position % 2 == 0):
            wanted = "a weight" if position % 2 == 0 else "a prefix"
            raise UserError(
                f"{flag} {' '.join(values)}: value {position + 1}, {value}, should be {wanted}: "
                "weights and prefixes take turns, such as 0.8 web 0.2 books"
            )
    if len(values) % 2:
        raise UserError(
            f"{flag} {' '.join(values)}: the weight {values[-1]} has no prefix after it"
        )
    return values[1::2]


def _check_prefixes(prefixes: Sequence[str], flag: str) -> None:
    for prefix in prefixes:
        if prefix.endswith((".bin", ".idx")):
            bare = Path(prefix).with_suffix("")
            raise UserError(f"{flag} {prefix}: give the prefix without .bin/.idx: {bare}")
        for path in (idx_path(prefix), bin_path(prefix)):
            if not path.is_file():
                raise UserError(f"{flag} {prefix}: {path} does not exist{_suggestion(prefix)}")
    for prefix in prefixes:
        if list(prefixes).count(prefix) > 1:
            raise UserError(
                f"{flag}: {prefix} occurs twice: name it once, with the sum of the weights"
            )


def _suggestion(prefix: str) -> str:
    """Datasets that begin like `prefix`: people forget the `_text_document`."""
    path = Path(prefix)
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent}"
    found = sorted(p.with_suffix("") for p in path.parent.glob("*.idx"))
    close = [p for p in found if p.name.startswith(path.name)] or found
    return f"; did you mean {', '.join(map(str, close[:3]))}?" if close else ""


def parse_split(split: str, flag: str = "--split") -> tuple[tuple[float, float] | None, ...]:
    """Bounds of the training, validation and test documents, as shares from 0 to 1.

    "969,30,1" is 96.9 % for training, then 3 %, then 0.1 %, in the order of the documents. A share
    of 0 is None: that split does not exist.

    Raises
    ------
    UserError
        If it is not one to three numbers, none negative, not all 0.
    """
    try:
        shares = [float(part) for part in split.replace("/", ",").split(",")]
    except ValueError:
        shares = []
    usable = 1 <= len(shares) <= 3 and all(math.isfinite(s) and s >= 0 for s in shares)
    if not usable or sum(shares) == 0:
        raise UserError(f"{flag} {split}: give shares for training, validation and test: 969,30,1")
    shares += [0.0] * (3 - len(shares))
    total = sum(shares)
    # The same sums in the same order as megatron-core's, so that the bounds are the same floats.
    bounds = [0.0]
    for share in shares:
        bounds.append(bounds[-1] + share / total)
    return tuple((low, high) if high > low else None for low, high in pairwise(bounds))
