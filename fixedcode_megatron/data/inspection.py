"""What is in a dataset: figures, and documents as text."""

from __future__ import annotations

from typing import Any

import numpy as np

from fixedcode_megatron.data.index_format import bin_path, idx_path
from fixedcode_megatron.data.indexed import IndexedDatasetReader
from fixedcode_megatron.data.lengths import LengthCounts, document_lengths
from fixedcode_megatron.data.summary import read_summary
from fixedcode_megatron.data.tokenizers import Tokenizer
from fixedcode_megatron.errors import UserError


def count_lengths(reader: IndexedDatasetReader) -> LengthCounts:
    """Lengths of all documents; reads the index only."""
    counts = LengthCounts()
    for lengths in document_lengths(reader):
        counts.add(lengths)
    return counts


def describe(reader: IndexedDatasetReader, counts: LengthCounts) -> dict[str, Any]:
    """Figures of a dataset, by name; tokens per document are given for all documents."""
    known = read_summary(reader.prefix) or {}
    facts: dict[str, Any] = {
        "prefix": reader.prefix,
        "dtype": reader.dtype.name,
        "documents": counts.documents,
        "empty_documents": counts.empty,
        "sequences": len(reader),
        "tokens": counts.tokens,
        "bin_bytes": bin_path(reader.prefix).stat().st_size,
        "idx_bytes": idx_path(reader.prefix).stat().st_size,
    }
    if counts.documents:
        facts["tokens_per_document"] = {
            "mean": round(counts.tokens / counts.documents, 2),
            "median": counts.quantile(0.5),
            "p90": counts.quantile(0.9),
            "p99": counts.quantile(0.99),
            "max": counts.quantile(1.0),
        }
    if reader.sequence_modes is not None:
        modes, numbers = np.unique(reader.sequence_modes, return_counts=True)
        facts["modes"] = dict(zip(map(str, modes.tolist()), numbers.tolist(), strict=True))
    for name in ("tokenizer", "vocab_size", "eod", "append_eod"):
        if name in known:
            facts[name] = known[name]
    if "merged_from" in known:
        facts["merged_from"] = len(known["merged_from"])
    return facts


def as_text(facts: dict[str, Any]) -> str:
    """The figures for people, one a line."""
    lines = [facts["prefix"]]
    for name, value in facts.items():
        if name == "prefix":
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{key} {_number(each)}" for key, each in value.items())
        lines.append(f"  {name.replace('_', ' '):<20} {_number(value)}")
    return "\n".join(lines)


def _number(value: object) -> str:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:,}" if plain else str(value)


def parse_documents(specs: list[str], documents: int) -> list[int]:
    """Document numbers of "5", "-1" (the last) and "0:3" (0, 1, 2).

    Raises
    ------
    UserError
        If one is no number or not in the dataset.
    """
    numbers: list[int] = []
    for spec in specs:
        try:
            bounds = [int(part) if part else None for part in spec.split(":")]
        except ValueError:
            bounds = []
        if len(bounds) == 2:
            numbers.extend(range(documents)[bounds[0] : bounds[1]])
            continue
        if len(bounds) != 1 or bounds[0] is None:
            raise UserError(f"--documents {spec}: give numbers or ranges: 0 17 -1 100:103")
        if not -documents <= bounds[0] < documents:
            raise UserError(f"--documents {spec}: the dataset has documents 0 to {documents - 1}")
        numbers.append(bounds[0] % documents)
    return numbers


def document_ids(reader: IndexedDatasetReader, number: int) -> np.ndarray:
    """All ids of a document, its sequences joined."""
    first, end = (int(x) for x in reader.document_indices[number : number + 2])
    if first == end:
        return np.empty(0, reader.dtype)
    begin = int(reader.sequence_pointers[first]) // reader.dtype.itemsize
    stop = int(reader.sequence_pointers[end - 1]) // reader.dtype.itemsize
    return reader.tokens[begin : stop + int(reader.sequence_lengths[end - 1])]


def show_document(
    reader: IndexedDatasetReader, number: int, tokenizer: Tokenizer | None, limit: int
) -> str:
    """A document as text (as ids without a tokenizer), its first `limit` tokens."""
    ids = document_ids(reader, number)
    first, end = (int(x) for x in reader.document_indices[number : number + 2])
    parts = f", {end - first} sequences" if end - first > 1 else ""
    shown = ids[:limit].tolist()
    text = " ".join(map(str, shown)) if tokenizer is None else tokenizer.decode(shown)
    rest = f"\n[... {len(ids) - limit} more tokens]" if len(ids) > limit else ""
    return f"--- document {number}: {len(ids)} tokens{parts}\n{text}{rest}"
