"""A tokenizer's ids by an engine, see `engines.py`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fixedcode_megatron.data.characters import NUMERIC, UNKNOWN, find_unknown
from fixedcode_megatron.data.digits import cut_digits
from fixedcode_megatron.data.engine_ids import DocumentIds, collect_ids
from fixedcode_megatron.data.engines import CUT, EngineMismatch, EnginePlan, build_engine
from fixedcode_megatron.data.marked_text import MarkedText
from fixedcode_megatron.data.tokenizers import Tokenizer
from fixedcode_megatron.data.unassigned import UnassignedCharacters

_CUT_BYTES = CUT.encode()
# Loading HF tokenizers takes as long as encoding this much by them: who has them may do that.
_LEFT_CHARACTERS = 1 << 15
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


@dataclass(frozen=True)
class Pending:
    """A piece of a document that HF tokenizers must encode.

    Attributes
    ----------
    place
        Where in the ids its own belong; that is before the end of its document.
    text
        The piece.
    """

    place: int
    text: str


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

    Attributes
    ----------
    engine
        For its memory: whether it is full, and to rebuild it, is for the caller.

    Raises
    ------
    EngineError
        If the engine is not installed or cannot do this tokenizer.
    """

    def __init__(self, plan: EnginePlan, tokenizer: Callable[[], Tokenizer]) -> None:
        self._plan = plan
        self._may_leave = _LEFT_CHARACTERS
        self.engine = build_engine(plan)
        self._unassigned = UnassignedCharacters(self._encode, plan.classes)
        self.tokenizer = functools.cache(tokenizer)

    @property
    def kinds(self) -> int:
        """Of the characters that are looked for in each text."""
        return NUMERIC | UNKNOWN if self._plan.cut_digits else UNKNOWN

    def encode_marked(
        self, text: MarkedText, dtype: str = "uint32", eod: int | None = None
    ) -> tuple[DocumentIds, list[Pending]]:
        """Ids of all documents, and pieces whose ids are still to be put in, by place.

        Parameters
        ----------
        dtype
            Of the ids.
        eod
            Id to append to each document that has an id, or None.
        """
        found, slow = self._run(text, dtype, eod)
        if not slow:
            return found, []
        documents = found.split()
        pending: list[tuple[int, Pending]] = []  # with the number of the document
        for i in sorted(slow):
            parts, texts = self._encode_by_pieces(text.text(i))
            size = sum(map(len, texts.values()))
            if eod is not None and any(parts) and size <= self._may_leave:
                self._may_leave -= size
                places = np.cumsum([0, *map(len, parts)])
                pending += [(i, Pending(int(places[k]), texts[k])) for k in texts]
            else:
                encoded = self.tokenizer().encode_batch(list(texts.values()))
                for k, ids in zip(texts, encoded, strict=True):
                    parts[k] = ids
            flat = [id_ for part in parts for id_ in part]
            documents[i] = np.array([*flat, eod] if flat and eod is not None else flat, dtype)
        lengths = np.fromiter(map(len, documents), np.int64, len(documents))
        begins = np.cumsum(lengths) - lengths
        return (
            DocumentIds(np.concatenate(documents), lengths),
            [replace(p, place=p.place + int(begins[i])) for i, p in pending],
        )

    def encode_alone(self, texts: Sequence[str]) -> OwnIds:
        """Leave out the texts for which HF tokenizers would be asked."""
        found, slow = self._run(MarkedText.of(texts))
        pieces = found.split()
        done = [i for i in range(len(texts)) if i not in slow]
        return OwnIds([texts[i] for i in done], [pieces[i] for i in done])

    def proofs(self) -> list[str]:
        """Texts of the characters first seen since the last call: see `UnassignedCharacters`."""
        return self._unassigned.proofs()

    def _run(
        self, text: MarkedText, dtype: str = "uint32", eod: int | None = None
    ) -> tuple[DocumentIds, set[int]]:
        """Ids, wrong for some documents, and which ones these are."""
        data, num_cuts = text.data, 0
        if self._plan.cut_digits:
            data, num_cuts, (unknown, codes) = cut_digits(data, _CUT_BYTES, text.places)
        else:
            unknown, codes = find_unknown(data, text.places)
        slow = set(text.left_out)
        if len(unknown):
            unknown = unknown[~self._unassigned.find(codes)]
            slow.update(np.searchsorted(text.bounds, unknown, side="right").tolist())
        found, missing = collect_ids(
            self._encode(data), self._plan, len(text), num_cuts, dtype, eod
        )
        return found, slow.union(missing)

    def _encode(self, text: bytes) -> np.ndarray:
        try:
            return self.engine.encode(text)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic of a Rust library is no Exception
            raise EngineMismatch(f"it failed on a document ({error})") from error

    def _encode_by_pieces(self, text: str) -> tuple[list[list[int]], dict[int, str]]:
        """Ids of the pieces of a document; none of those, by number, that the engine cannot do."""
        pieces = list(_pieces(text)) if self._plan.can_cut else [text]
        found, slow = self._run(MarkedText.of(pieces))
        parts = [[] if i in slow else ids.tolist() for i, ids in enumerate(found.split())]
        return parts, {i: pieces[i] for i in sorted(slow)}


def _pieces(text: str) -> Iterator[str]:
    """Cut a text at some of the places where GPT-2's pattern always splits."""
    begin = 0
    while place := _SPLIT.search(text, begin + _PIECE_CHARACTERS):
        yield text[begin : place.start()]
        begin = place.start()
    yield text[begin:]
