"""What a blend will draw from each of its datasets; reads indices only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fixedcode_megatron.data.plans import SplitPlan
from fixedcode_megatron.errors import UserError


@dataclass(frozen=True)
class Draw:
    """One dataset's part in a blend.

    Attributes
    ----------
    weight
        Share of the samples.
    documents, tokens
        What the dataset has for this split.
    samples, drawn_tokens
        What training takes from it.
    epochs
        How often it goes through the dataset.
    """

    prefix: str
    weight: float
    documents: int
    tokens: int
    samples: int
    drawn_tokens: int
    epochs: float


def draws(plan: SplitPlan, seq_length: int) -> list[Draw]:
    """The part of each dataset, as `build_datasets` draws it."""
    one_pass = [(part.tokens - 1) // seq_length for part in plan.parts]
    if plan.weights is not None:
        assert plan.samples is not None
        weights: Sequence[float] = plan.weights
    else:  # each dataset once, in proportion; or a single one
        weights = [count / sum(one_pass) for count in one_pass]
    total = plan.samples
    if total is None or (plan.weights is None and len(plan.parts) > 1):
        total = sum(one_pass) if total is None else min(total, sum(one_pass))
    result = []
    for part, weight in zip(plan.parts, weights, strict=True):
        samples = math.ceil(total * weight)
        result.append(
            Draw(
                prefix=part.prefix,
                weight=weight,
                documents=part.end - part.first,
                tokens=part.tokens,
                samples=samples,
                drawn_tokens=samples * seq_length,
                epochs=samples * seq_length / part.tokens,
            )
        )
    return result


def without_repeats(parts: Sequence[Draw]) -> int:
    """The largest number of tokens to train on before one of the datasets repeats."""
    return int(min(part.tokens / part.weight for part in parts))


def as_table(parts: Sequence[Draw]) -> str:
    """The parts for people, one a line, and their sum."""
    head = ("dataset", "weight", "documents", "tokens", "samples", "drawn tokens", "epochs")
    rows: list[tuple[str, ...]] = [
        (p.prefix, f"{p.weight:.4f}", f"{p.documents:,}", f"{p.tokens:,}", f"{p.samples:,}",
         f"{p.drawn_tokens:,}", f"{p.epochs:.3f}")
        for p in parts
    ]  # fmt: skip
    names = ("documents", "tokens", "samples", "drawn_tokens")
    sums = [f"{sum(getattr(p, name) for p in parts):,}" for name in names]
    rows.append(("all", f"{sum(p.weight for p in parts):.4f}", *sums, ""))
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    )


_UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


def parse_tokens(text: str) -> int:
    """A number of tokens: 100B, 1.5T, 20e9, 17_093_000_000.

    Raises
    ------
    UserError
        If it is none.
    """
    number, unit = text.strip().upper(), 1
    if number[-1:] in _UNITS:
        number, unit = number[:-1], _UNITS[number[-1]]
    try:
        value = float(number) * unit if set(number) & set(".E") else int(number) * unit
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 1):
        raise UserError(f"--tokens {text}: give a number such as 100B or 2.5e9")
    return round(value)


def as_dicts(parts: Sequence[Draw]) -> list[dict[str, Any]]:
    """The parts for programs."""
    return [dict(vars(part)) for part in parts]
