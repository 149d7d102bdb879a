"""An engine's ids of marked text, to the ids of each document."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from fixedcode_megatron.data.compiled import library
from fixedcode_megatron.data.engines import EngineMismatch, EnginePlan


@dataclass(frozen=True)
class DocumentIds:
    """Ids of documents.

    Attributes
    ----------
    ids
        Of all documents, one after the other.
    lengths
        Number of ids of each document, int64 [documents].
    """

    ids: np.ndarray
    lengths: np.ndarray

    def split(self) -> list[np.ndarray]:
        """The ids of each document."""
        return np.split(self.ids, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


def collect_ids(
    found: np.ndarray,
    plan: EnginePlan,
    num_documents: int,
    num_cuts: int,
    dtype: str,
    eod: int | None,
) -> tuple[DocumentIds, list[int]]:
    """Take the markers out of an engine's ids.

    Parameters
    ----------
    found
        uint32 [n].
    plan
        Says which ids are markers, and which stand for missing bytes.
    num_documents, num_cuts
        How many markers there must be.
    dtype
        Of the ids to return: uint16, uint32 or int32.
    eod
        To be appended to each document that has an id; None appends nothing.

    Returns
    -------
    found
        The ids.
    missing
        Documents with a byte that the vocabulary lacks, by number: their ids are not right.

    Raises
    ------
    EngineMismatch
        If the markers did not come out as they went in.
    """
    built = library()
    collect = _collect if built is None else _collect_compiled
    result = collect(np.ascontiguousarray(found, np.uint32), plan, num_documents, dtype, eod)
    if result is None or result[2] != num_cuts:
        raise EngineMismatch("it lost the end of a document")
    return result[:2]


def _collect_compiled(
    found: np.ndarray, plan: EnginePlan, num_documents: int, dtype: str, eod: int | None
) -> tuple[DocumentIds, list[int], int] | None:
    built = library()
    assert built is not None
    ids = np.empty(len(found), dtype)
    lengths, missing = np.empty(num_documents, np.int64), np.zeros(num_documents, np.uint8)
    cuts = ctypes.c_int64()
    size = built.collect_ids(
        *(found.ctypes.data, len(found), plan.first_missing, plan.end, plan.cut),
        *(-1 if eod is None else eod, ids.itemsize, ids.ctypes.data, lengths.ctypes.data),
        *(missing.ctypes.data, num_documents, ctypes.byref(cuts)),
    )
    if size < 0:
        return None
    return DocumentIds(ids[:size], lengths), np.flatnonzero(missing).tolist(), cuts.value


def _collect(
    found: np.ndarray, plan: EnginePlan, num_documents: int, dtype: str, eod: int | None
) -> tuple[DocumentIds, list[int], int] | None:
    is_end = found == plan.end
    if np.count_nonzero(is_end) != num_documents or not is_end[-1:].all():
        return None
    document = np.cumsum(is_end) - is_end
    plain = found < plan.first_missing
    is_cut = found == plan.cut
    lengths = np.bincount(document[plain], minlength=num_documents)
    kept = plain
    if eod is not None:
        kept = plain | (is_end & (lengths[document] > 0))
        found = np.where(is_end, np.uint32(eod), found)
        lengths += lengths > 0
    missing = np.unique(document[~(plain | is_end | is_cut)]).tolist()
    return DocumentIds(found[kept].astype(dtype), lengths), missing, int(np.count_nonzero(is_cut))
