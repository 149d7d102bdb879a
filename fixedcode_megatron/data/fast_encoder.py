"""A tokenizer's ids by an engine, see `engines.py`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fixedcode_megatron.data.characters import NUMERIC, UNKNOWN, find_unknown
from fixedcode_megatron.data.digits import find_cuts, insert_markers
from fixedcode_megatron.data.engines import (
    CUT,
    EngineMismatch,
    EnginePlan,
    build_engine,
)
from fixedcode_megatron.data.marked_text import MarkedText
from fixedcode_megatron.data.tokenizers import Tokenizer
from fixedcode_megatron.data.unassigned import UnassignedCharacters

_CUT_BYTES = CUT.encode()
_SPLIT, _PIECE_CHARACTERS = re.compile("(?<=[!-~])(?=[ \n])"), 2000


@dataclass(frozen=True)
class OwnIds:
    """An engine's own ids of some texts, to be compared with HF tokenizers'.

    Attributes
    ----------
    texts
        The texts.
    ids
        Of each text, uint32 [n].
    """

    texts: list[str]
    ids: list[np.ndarray]


class FastEncoder:
    """A tokenizer's ids by an engine, with HF tokenizers for the documents the engine cannot do.

    Those are: bytes for which the vocabulary has no id (HF tokenizers drops them; here they get
    ids past the vocabulary, and such a document is encoded again), characters that this Python's
    Unicode tables lack and the engine's do not, and texts that hold a character of the markers.

    Parameters
    ----------
    plan
        See `plan_engine`.
    tokenizer
        Builds the tokenizer itself; called when it is first needed.

    Raises
    ------
    EngineError
        If the engine is not installed or cannot do this tokenizer.
    """

    def __init__(self, plan: EnginePlan, tokenizer: Callable[[], Tokenizer]) -> None:
        self._cut_digits, self._can_cut = plan.cut_digits, plan.can_cut
        self._first_missing = plan.first_missing
        self._end, self._cut = plan.first_missing + 256, plan.first_missing + 257
        self._engine = build_engine(plan)
        self._unassigned = UnassignedCharacters(self._encode, plan.classes)
        self.tokenizer = functools.cache(tokenizer)

    @property
    def kinds(self) -> int:
        """Of the characters that are looked for in each text."""
        return NUMERIC | UNKNOWN if self._cut_digits else UNKNOWN

    def encode_marked(self, text: MarkedText) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all documents, each with one more behind it: where an end-of-document id may go.

        Returns
        -------
        ids
            uint32 [n].
        ends
            Where those additional ids are, int64 [documents].
        """
        ids, ends, slow = self._encode_all(text)
        return self._replace(ids, ends, text, slow) if slow else (ids, ends)

    def encode_alone(self, texts: Sequence[str]) -> OwnIds:
        """Leave out the texts for which HF tokenizers would be asked."""
        ids, ends, slow = self._encode_all(MarkedText.of(texts))
        done = [i for i in range(len(texts)) if i not in slow]
        pieces = np.split(ids, ends[:-1] + 1)
        return OwnIds([texts[i] for i in done], [pieces[i][:-1] for i in done])

    def proofs(self) -> list[str]:
        """Texts of the characters first seen since the last call: see `UnassignedCharacters`."""
        return self._unassigned.proofs()

    def _encode_all(self, text: MarkedText) -> tuple[np.ndarray, np.ndarray, set[int]]:
        """As `encode_marked`, with wrong ids for some documents, and which ones these are."""
        ids, ends, slow = self._run(text)
        if len(ends) != len(text):
            raise EngineMismatch("it lost the end of a document")
        return ids, ends, slow.union(text.left_out)

    def _run(self, text: MarkedText) -> tuple[np.ndarray, np.ndarray, set[int]]:
        """Ids with an end after each document, the places of the ends, documents to do again.

        The ends are none if the markers did not come out as they went in.
        """
        data = text.data
        slow: set[int] = set()
        num_cuts = 0
        if self._cut_digits:
            cuts, (unknown, codes) = find_cuts(data, text.places)
            num_cuts = len(cuts)
        else:
            unknown, codes = find_unknown(data, text.places)
        if len(unknown):
            unknown = unknown[~self._unassigned.find(codes)]
            slow.update(np.searchsorted(text.bounds, unknown, side="right").tolist())
        if num_cuts:
            data = insert_markers(data, cuts, _CUT_BYTES)
        ids = self._encode(data)
        marks = np.flatnonzero(ids >= self._first_missing)
        found = ids[marks]
        if num_cuts:
            is_cut = found == self._cut
            if int(np.count_nonzero(is_cut)) != num_cuts:
                return ids, marks[:0], slow
            ids = ids[ids != self._cut]
            marks, found = (marks - np.cumsum(is_cut))[~is_cut], found[~is_cut]
        is_end = found == self._end
        ends = marks[is_end]
        missing = marks[~is_end]
        if len(missing):
            slow.update(np.searchsorted(ends, missing).tolist())
        return ids, ends, slow

    def _encode(self, text: bytes) -> np.ndarray:
        try:
            return self._engine.encode(text)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic of a Rust library is no Exception
            raise EngineMismatch(f"it failed on a document ({error})") from error

    def _replace(
        self, ids: np.ndarray, ends: np.ndarray, text: MarkedText, slow: set[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Put right ids in the place of those of the `slow` documents."""
        pieces = np.split(ids, ends[:-1] + 1)
        lengths = np.diff(ends, prepend=-1)
        for i in sorted(slow):
            pieces[i] = np.array([*self._encode_slowly(text.text(i)), self._end], np.uint32)
            lengths[i] = len(pieces[i])
        return np.concatenate(pieces), np.cumsum(lengths) - 1

    def _encode_slowly(self, text: str) -> list[int]:
        """Ids of a document by HF tokenizers; of a long one only where the engine cannot."""
        pieces = list(_pieces(text)) if self._can_cut else [text]
        ids, ends, slow = self._encode_all(MarkedText.of(pieces))
        found = [part[:-1].tolist() for part in np.split(ids, ends[:-1] + 1)]
        chosen = sorted(slow)
        encoded = self.tokenizer().encode_batch([pieces[i] for i in chosen])
        for i, replacement in zip(chosen, encoded, strict=True):
            found[i] = replacement
        return [id_ for part in found for id_ in part]


def _pieces(text: str) -> Iterator[str]:
    """Cut a text at some of the places where GPT-2's pattern always splits."""
    begin = 0
    while place := _SPLIT.search(text, begin + _PIECE_CHARACTERS):
        yield text[begin : place.start()]
        begin = place.start()
    yield text[begin:]
