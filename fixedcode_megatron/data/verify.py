"""Is a dataset whole, and does it fit the tokenizer? Every problem is listed, not one alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fixedcode_megatron.data.index_format import bin_path, idx_path, read_header, sequence_pointers
from fixedcode_megatron.data.indexed import IndexedDatasetReader
from fixedcode_megatron.data.summary import read_summary, summary_path
from fixedcode_megatron.errors import UserError

_CHUNK = 1 << 20


@dataclass
class Findings:
    """What verification found.

    Attributes
    ----------
    problems
        What is wrong, one sentence each; empty for a good dataset.
    notes
        What was checked, and what may surprise.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify(prefix: str, *, vocab_size: int | None = None, eod: int | None = None) -> Findings:
    """Check sizes, bounds, ids and document ends of a dataset; reads every token once.

    Parameters
    ----------
    vocab_size
        Ids must be below it. Default: the summary's.
    eod
        Id that ends documents. Default: the summary's, if the data was made with one.
    """
    found = Findings()
    try:
        reader = IndexedDatasetReader(prefix)
    except UserError as error:
        found.problems.append(str(error))
        return found
    summary = read_summary(prefix)
    if summary is None and summary_path(prefix).is_file():
        found.notes.append(f"{summary_path(prefix)} describes another file and is not believed")
    known = summary or {}
    vocab_size = known.get("vocab_size") if vocab_size is None else vocab_size
    appended = known.get("append_eod")
    if eod is None and appended is not False:
        eod = known.get("eod")
    if _bounds(reader, found):
        largest = _ids(reader, vocab_size, found)
        _document_ends(reader, eod, bool(appended), found)
        _summary(reader, known, largest, found)
    return found


def _chunks(array: np.ndarray, overlap: int = 0) -> Iterator[tuple[int, np.ndarray]]:
    for first in range(0, max(len(array) - overlap, 0), _CHUNK):
        yield first, np.asarray(array[first : first + _CHUNK + overlap])


def _bounds(reader: IndexedDatasetReader, found: Findings) -> bool:
    """Lengths, pointers and document indices; False if ids cannot be looked up by them."""
    before = len(found.problems)
    offset = 0
    for first, lengths in _chunks(reader.sequence_lengths):
        if int(lengths.min()) < 0:
            where = first + int(np.argmax(lengths < 0))
            found.problems.append(f"sequence {where} has length {int(lengths.min())}")
            return False
        right = sequence_pointers(lengths, reader.dtype.itemsize, offset)
        wrong = right != reader.sequence_pointers[first : first + len(lengths)]
        if wrong.any():
            where = int(np.argmax(wrong))
            stored = int(reader.sequence_pointers[first + where])
            found.problems.append(
                f"sequence {first + where} is said to begin at byte {stored}, the lengths before "
                f"it give {int(right[where])}"
            )
            break
        offset += int(lengths.sum(dtype=np.int64)) * reader.dtype.itemsize
    ends, sequences = reader.document_indices, len(reader)
    if len(ends) == 0 or int(ends[0]) != 0 or int(ends[-1]) != sequences:
        shown = "none" if len(ends) == 0 else f"{int(ends[0])} to {int(ends[-1])}"
        found.problems.append(f"documents cover sequences {shown}, there are 0 to {sequences}")
    for first, part in _chunks(ends, overlap=1):
        falls = np.diff(part) < 0
        if falls.any():
            found.problems.append(f"document {first + int(np.argmax(falls))} ends before it begins")
            break
    size = bin_path(reader.prefix).stat().st_size
    header = read_header(idx_path(reader.prefix))
    found.notes.append(
        f"sizes and bounds: {size:,} bytes of {reader.dtype.name}, {header.sequences:,} sequences, "
        f"{max(header.ends - 1, 0):,} documents" + (", with modes" if header.multimodal else "")
    )
    return len(found.problems) == before


def _ids(reader: IndexedDatasetReader, vocab_size: int | None, found: Findings) -> int:
    """Largest id; ids outside the vocabulary are counted."""
    largest, outside, first_outside = -1, 0, -1
    for first, ids in _chunks(reader.tokens):
        largest = max(largest, int(ids.max()))
        smallest = int(ids.min())
        if smallest < 0 or (vocab_size is not None and largest >= vocab_size):
            wrong = ids < 0
            if vocab_size is not None:
                wrong |= ids >= vocab_size
            if wrong.any() and first_outside < 0:
                first_outside = first + int(np.argmax(wrong))
            outside += int(wrong.sum())
    limit = "no vocabulary size known" if vocab_size is None else f"vocabulary of {vocab_size:,}"
    if outside:
        right = "negative ids" if vocab_size is None else f"ids outside 0 to {vocab_size - 1}"
        found.problems.append(
            f"{right}: {outside:,}, the first is {int(reader.tokens[first_outside])} in document "
            f"{_document_of(reader, first_outside)}"
        )
    else:
        found.notes.append(f"ids: largest {largest:,}, {limit}")
    return largest


def _document_of(reader: IndexedDatasetReader, token: int) -> int:
    """The document that holds token number `token`."""
    byte = token * reader.dtype.itemsize
    sequence = int(np.searchsorted(reader.sequence_pointers, byte, side="right")) - 1
    return int(np.searchsorted(reader.document_indices, sequence, side="right")) - 1


def _document_ends(
    reader: IndexedDatasetReader, eod: int | None, required: bool, found: Findings
) -> None:
    """Whether documents end with the end-of-document id: all of them, or none."""
    empty = ended = filled = 0
    without = -1
    itemsize = reader.dtype.itemsize
    for first, ends in _chunks(reader.document_indices, overlap=1):
        stops = _token_ends(reader, ends, itemsize)
        has_tokens = np.diff(stops) > 0
        empty += int((~has_tokens).sum())
        filled += int(has_tokens.sum())
        if eod is None:
            continue
        last = reader.tokens[stops[1:][has_tokens] - 1] == eod
        ended += int(last.sum())
        if without < 0 and not last.all():
            without = first + int(np.flatnonzero(has_tokens)[np.argmin(last)])
    if empty:
        found.notes.append(f"documents without tokens: {empty:,}")
    if eod is None:
        found.notes.append("document ends: no end-of-document id known (--eod-id), not checked")
    elif ended == filled:
        found.notes.append(f"document ends: all {filled:,} documents end with {eod}")
    elif ended == 0 and not required:
        found.notes.append(f"document ends: no document ends with {eod} (no --append-eod)")
    else:
        found.problems.append(
            f"{filled - ended:,} of {filled:,} documents do not end with {eod}, the first is "
            f"document {without}"
        )


def _token_ends(reader: IndexedDatasetReader, ends: np.ndarray, itemsize: int) -> np.ndarray:
    """Number of the token at which each entry of `document_indices` lies, int64."""
    total = len(reader.tokens)
    if len(reader) == 0:
        return np.zeros(len(ends), np.int64)
    inside = np.minimum(ends, len(reader) - 1)
    return np.where(ends < len(reader), reader.sequence_pointers[inside] // itemsize, total)


def _summary(
    reader: IndexedDatasetReader, known: dict[str, Any], largest: int, found: Findings
) -> None:
    actual = {
        "documents": reader.num_documents,
        "tokens": len(reader.tokens),
        "max_token_id": largest,
        "dtype": reader.dtype.name,
    }
    for name, value in actual.items():
        if name in known and known[name] != value:
            found.problems.append(f"the summary says {name} {known[name]}, the files say {value}")
