"""SmolLM2-style splitting (each digit alone, then GPT-2's pattern) for engines without it.

Such a vocabulary joins no digit with anything. Then splitting off the digits changes GPT-2's
pieces only in two places: where two or more whitespace characters precede a digit (the pattern
would leave the last one to the digit), and around numeric characters outside ASCII. Text cut there
and encoded piece by piece gets the same ids.
"""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np

from fixedcode_megatron.data.characters import NUMERIC, UNKNOWN, find_characters
from fixedcode_megatron.data.compiled import library

_SPACE = np.isin(np.arange(256), list(b"\t\n\x0b\x0c\r "))


def is_digits_then_gpt2(tree: dict) -> bool:
    """Whether a `tokenizer.json` splits in this way and its vocabulary joins no digit."""
    splitter = tree.get("pre_tokenizer") or {}
    parts = splitter.get("pretokenizers", [])
    if splitter.get("type") != "Sequence" or len(parts) != 2 or tree.get("normalizer"):
        return False
    digits, bytes_ = parts
    if digits.get("type") != "Digits" or not digits.get("individual_digits"):
        return False
    plain = not bytes_.get("add_prefix_space") and bytes_.get("use_regex", True)
    if bytes_.get("type") != "ByteLevel" or not plain:
        return False
    model = tree["model"]
    if model.get("dropout") or model.get("ignore_merges"):
        return False
    merges = (m if isinstance(m, str) else m[0] + m[1] for m in model["merges"])
    return not any(map(re.compile("[0-9]").search, merges))


def find_cuts(
    text: bytes, places: np.ndarray | None = None
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Where to cut UTF-8 text so that GPT-2's splitting of the pieces is digits-first splitting.

    A cut before a digit is never wrong. It is needed after two white spaces, and made after every
    character outside ASCII, which may be one. `places` is where numeric and unknown characters may
    be, if that is known.

    Returns
    -------
    cuts
        Offsets, int64, increasing.
    unknown
        As `characters.find_unknown`.
    """
    data = np.frombuffer(text, np.uint8)
    cuts = _digit_cuts(text, data)
    places, kinds, widths, codes = find_characters(data, NUMERIC | UNKNOWN, places)
    numeric = kinds == NUMERIC
    if numeric.any():
        starts = places[numeric]
        cuts = np.unique(np.concatenate((cuts, starts, starts + widths[numeric])))
    unknown = kinds == UNKNOWN
    return cuts, (places[unknown], codes[unknown])


def _digit_cuts(text: bytes, data: np.ndarray) -> np.ndarray:
    built = library()
    if built is not None:
        cuts = np.empty(len(text) // 2, np.int64)
        return cuts[: built.digit_cuts(text, len(text), cuts.ctypes.data)].copy()
    digits = np.flatnonzero(data[2:] - np.uint8(48) < 10) + 2
    last, before = data[digits - 1], data[digits - 2]
    return digits[(last >= 0x80) | (_SPACE[last] & (_SPACE[before] | (before >= 0x80)))]


def insert_markers(text: bytes, cuts: np.ndarray, marker: bytes) -> bytes:
    """The text with `marker` before each of the offsets `cuts`, int64, increasing."""
    built = library()
    if built is None:
        around = pairwise([0, *cuts.tolist(), len(text)])
        return marker.join([text[begin:end] for begin, end in around])
    marked = np.empty(len(text) + len(cuts) * len(marker), np.uint8)
    built.insert_markers(
        *(text, len(text), cuts.ctypes.data, len(cuts), marker, len(marker), marked.ctypes.data)
    )
    return marked.tobytes()
