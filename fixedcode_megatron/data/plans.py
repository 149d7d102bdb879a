"""Which documents and how many samples make up each split. Reads indices only."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fixedcode_megatron.data.blend import SPLITS, Blend, parse_blend, parse_split
from fixedcode_megatron.data.index_format import MAX_SEQUENCES
from fixedcode_megatron.data.indexed import IndexedDatasetReader
from fixedcode_megatron.errors import UserError

logger = logging.getLogger(__name__)

MAX_EPOCHS = 1_000_000
MAX_DATASETS = 32_766
"""megatron-core numbers the datasets of a blend in int16."""


@dataclass(frozen=True)
class Part:
    """The documents of one dataset that belong to a split.

    Attributes
    ----------
    first, end
        The documents are `first` to `end` - 1 (megatron-core counts sequences).
    tokens
        Tokens in them.
    """

    prefix: str
    first: int
    end: int
    tokens: int


@dataclass(frozen=True)
class SplitPlan:
    """What to build for one split: its parts, their weights, and the number of samples wanted.

    `samples` None means each part once.
    """

    name: str
    parts: tuple[Part, ...]
    weights: tuple[float, ...] | None
    samples: int | None


def plan_splits(
    data: Any, samples: Sequence[int | None], seq_length: int
) -> tuple[SplitPlan | None, ...]:
    """Which documents and how many samples make up each split; reads indices only.

    Raises
    ------
    UserError
        As `build_datasets`.
    """
    assert len(samples) == len(SPLITS)
    own = [getattr(data, f"{name}_data_path", None) for name in SPLITS]
    common = getattr(data, "data_path", None)
    if common and any(own):
        raise UserError(
            "give --data-path with --split, or --train-data-path and its like, not both"
        )
    if not common and not any(own):
        raise UserError("no data: give --data-path PREFIX (without .bin/.idx)")
    plans: list[SplitPlan | None] = []
    if common:
        text = getattr(data, "split", None) or "969,30,1"
        blend = parse_blend(common)
        for name, bounds, wanted in zip(SPLITS, parse_split(text), samples, strict=True):
            if wanted == 0 or bounds is None:
                if wanted != 0:
                    logger.warning("--split %s has no %s documents: none are built", text, name)
                plans.append(None)
                continue
            plans.append(_plan(name, blend, bounds, wanted, seq_length, f"--split {text}"))
        return tuple(plans)
    for name, values, wanted in zip(SPLITS, own, samples, strict=True):
        if wanted == 0 or not values:
            if wanted != 0 and name == "train":
                raise UserError("no training data: give --train-data-path PREFIX")
            plans.append(None)
            continue
        blend = parse_blend(values, f"--{name}-data-path")
        plans.append(_plan(name, blend, (0.0, 1.0), wanted, seq_length, f"--{name}-data-path"))
    return tuple(plans)


def _plan(
    name: str,
    blend: Blend,
    bounds: tuple[float, float],
    wanted: int | None,
    seq_length: int,
    flag: str,
) -> SplitPlan:
    parts, documents = [], []
    if len(blend.prefixes) > MAX_DATASETS:
        raise UserError(
            f"{flag}: {len(blend.prefixes)} datasets, a blend can have {MAX_DATASETS}: merge some "
            "with tools/merge_datasets.py"
        )
    for prefix in blend.prefixes:
        lengths = IndexedDatasetReader(prefix).sequence_lengths
        refuse_too_many_sequences(prefix, len(lengths))
        first, end = (round(bound * float(len(lengths))) for bound in bounds)
        tokens = int(lengths[first:end].sum(dtype=np.int64))
        parts.append(Part(prefix, first, end, tokens))
        documents.append(len(lengths))
    weights = blend.weights
    if weights is not None and wanted is None:
        raise UserError(f"weights need a number of {name} samples, not one pass over the data")
    once = sum((part.tokens - 1) // seq_length for part in parts)
    if weights is None and len(parts) > 1 and wanted is not None and wanted > once:
        logger.warning(
            "%d %s samples are wanted, the data gives %d: each dataset is repeated in proportion",
            wanted,
            name,
            once,
        )
        total = max(1, sum(part.tokens for part in parts))
        weights = tuple(part.tokens / total for part in parts)
    repeats = weights is not None or len(parts) == 1
    for part, count in zip(parts, documents, strict=True):
        _refuse_too_few(name, part, count, wanted if repeats else None, seq_length, flag)
    return SplitPlan(name, tuple(parts), weights, wanted)


def refuse_too_many_sequences(prefix: str, sequences: int) -> None:
    """Refuse a dataset whose sequence numbers would wrap around in int32."""
    if sequences > MAX_SEQUENCES:
        raise UserError(
            f"{prefix} has {sequences:,} sequences, training can number {MAX_SEQUENCES:,}: divide "
            "it into several datasets and blend them"
        )


def _refuse_too_few(
    name: str, part: Part, documents: int, wanted: int | None, seq_length: int, flag: str
) -> None:
    """Refuse what would loop for ever, or give no sample, in megatron-core."""
    where = f"the {name} split of {part.prefix} ({flag}: documents {part.first} to {part.end - 1})"
    if part.end <= part.first:
        where = f"the {name} split of {part.prefix} ({flag}: none of its {documents} documents)"
    cure = f"give that split a larger share, or ask for no {name} samples (--eval-iters 0)"
    if part.tokens == 0:
        raise UserError(f"{where} gets no tokens: {cure}")
    if wanted is None and part.tokens <= seq_length:
        raise UserError(
            f"{where} has {part.tokens} tokens, one sample needs {seq_length + 1}: {cure}"
        )
    if wanted is not None and wanted * seq_length + 1 > part.tokens * MAX_EPOCHS:
        raise UserError(
            f"{where} has {part.tokens} tokens: {wanted} samples of {seq_length} would repeat them "
            f"over {MAX_EPOCHS} times: {cure}"
        )
