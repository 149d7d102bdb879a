"""SmolLM2-style splitting (each digit alone, then GPT-2's pattern) for engines without it.

Such a vocabulary joins no digit with anything. Then splitting off the digits changes GPT-2's
pieces only in two places: where two or more whitespace characters precede a digit (the pattern
would leave the last one to the digit), and around numeric characters outside ASCII. Text cut there
and encoded piece by piece gets the same ids.
"""

from __future__ import annotations

import functools
import re
import unicodedata

import numpy as np

_NUMERIC, _UNKNOWN = 1, 2
_SPACE = np.isin(np.arange(256), list(b"\t\n\x0b\x0c\r "))
_LAST = 0x34000  # above: tags, private use, or not assigned


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


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Which characters outside ASCII matter, and how their UTF-8 begins.

    Returns
    -------
    classes
        `_NUMERIC`, `_UNKNOWN` or 0 of each code point, uint8 [0x110000]. Noncharacters are known.
    pairs
        The classes, ORed, of the characters that begin with this pair of bytes, uint8 [65536].
    """
    codes = np.arange(0x80, _LAST)
    names = "".join(map(unicodedata.category, map(chr, codes.tolist()))).encode()
    first, second = np.frombuffer(names, np.uint8).reshape(-1, 2).T
    is_noncharacter = (codes & 0xFFFE == 0xFFFE) | ((codes >= 0xFDD0) & (codes <= 0xFDEF))
    classes = np.zeros(0x110000, np.uint8)
    classes[codes[first == ord("N")]] = _NUMERIC
    classes[codes[(first == ord("C")) & (second == ord("n")) & ~is_noncharacter]] = _UNKNOWN
    pairs = np.zeros(1 << 16, np.uint8)
    for kind in (_NUMERIC, _UNKNOWN):
        some = np.flatnonzero(classes == kind)
        for end, lead, shift in ((0x800, 0xC0, 0), (0x10000, 0xE0, 6), (0x110000, 0xF0, 12)):
            short, some = some[some < end], some[some >= end]
            pair = (lead | (short >> (shift + 6))) << 8 | 0x80 | ((short >> shift) & 0x3F)
            pairs[np.unique(pair)] |= kind
    return classes, pairs


def _find_characters(data: np.ndarray, kinds: int) -> tuple[np.ndarray, ...]:
    """Characters outside ASCII that are of `kinds`, or begin as one: places, classes, widths."""
    leads = np.flatnonzero(data >= 0xC2)
    if len(leads) == 0:
        return leads, leads, leads
    classes, pairs = _tables()
    hits = leads[pairs[(data[leads].astype(np.uint16) << 8) | data[leads + 1]] & kinds > 0]
    codes, widths = _characters(data, hits)
    return hits, classes[codes], widths


def find_unknown(text: bytes) -> np.ndarray:
    """Offsets, int64, of the characters in UTF-8 text that this Python's Unicode tables lack.

    Where the tables of an engine are newer than those of HF tokenizers, they split differently.
    """
    places, kinds, _ = _find_characters(np.frombuffer(text, np.uint8), _UNKNOWN)
    return places[kinds == _UNKNOWN]


def find_cuts(text: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Where to cut UTF-8 text so that GPT-2's splitting of the pieces is digits-first splitting.

    A cut before a digit is never wrong. It is needed after two white spaces, and made after every
    character outside ASCII, which may be one.

    Returns
    -------
    cuts
        Offsets, int64, increasing.
    unknown
        As `find_unknown`.
    """
    data = np.frombuffer(text, np.uint8)
    digits = np.flatnonzero(data[2:] - np.uint8(48) < 10) + 2
    last, before = data[digits - 1], data[digits - 2]
    cuts = digits[(last >= 0x80) | (_SPACE[last] & (_SPACE[before] | (before >= 0x80)))]
    places, kinds, widths = _find_characters(data, _NUMERIC | _UNKNOWN)
    numeric = kinds == _NUMERIC
    if numeric.any():
        starts = places[numeric]
        cuts = np.unique(np.concatenate((cuts, starts, starts + widths[numeric])))
    return cuts, places[kinds == _UNKNOWN]


def _characters(data: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Code points of the characters outside ASCII that begin at `places`, and their bytes."""
    first = data[places].astype(np.int64)
    widths = 2 + (first >= 0xE0) + (first >= 0xF0)
    codes = first & (0x7F >> widths)
    for i in range(1, 4):
        inside = i < widths
        following = data[np.where(inside, places + i, 0)] & 0x3F
        codes = np.where(inside, (codes << 6) | following, codes)
    return codes, widths
