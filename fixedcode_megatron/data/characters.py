"""Characters outside ASCII in UTF-8 text: numbers, and what this Python's Unicode tables lack."""

from __future__ import annotations

import functools
import unicodedata

import numpy as np

NUMERIC, UNKNOWN = 1, 2
_LAST = 0x34000  # above: tags, private use, or not assigned
# Ideographs, Hangul, surrogates and private use, in all versions since Unicode 9: neither numbers
# nor unassigned.
_NEITHER = (
    *((0x3400, 0x4DB6), (0x4E00, 0x9FD6), (0xAC00, 0xD7A4), (0xD800, 0xFA6E), (0x17000, 0x187ED)),
    *((0x20000, 0x2A6D7), (0x2A700, 0x2B735), (0x2B740, 0x2B81E), (0x2B820, 0x2CEA2)),
)


@functools.cache
def categories() -> tuple[np.ndarray, np.ndarray]:
    """Characters outside ASCII that may be a number or unassigned, and what they are.

    Returns
    -------
    codes
        Code points, int64 [n].
    names
        The two letters of each one's category, uint8 [n, 2].
    """
    begins = [0x80, *(end for _, end in _NEITHER)]
    ends = [*(begin for begin, _ in _NEITHER), _LAST]
    codes = np.concatenate([np.arange(i, j) for i, j in zip(begins, ends, strict=True)])
    characters = codes.astype("<u4").tobytes().decode("utf-32-le")
    names = "".join(map(unicodedata.category, characters)).encode()
    return codes, np.frombuffer(names, np.uint8).reshape(-1, 2)


@functools.cache
def tables() -> tuple[np.ndarray, np.ndarray]:
    """Which characters outside ASCII matter, and how their UTF-8 begins.

    Returns
    -------
    classes
        `NUMERIC`, `UNKNOWN` or 0 of each code point, uint8 [0x110000]. Noncharacters are known.
    pairs
        The classes, ORed, of the characters that begin with this pair of bytes, uint8 [65536].
    """
    codes, names = categories()
    first, second = names.T
    is_noncharacter = (codes & 0xFFFE == 0xFFFE) | ((codes >= 0xFDD0) & (codes <= 0xFDEF))
    classes = np.zeros(0x110000, np.uint8)
    classes[codes[first == ord("N")]] = NUMERIC
    classes[codes[(first == ord("C")) & (second == ord("n")) & ~is_noncharacter]] = UNKNOWN
    pairs = np.zeros(1 << 16, np.uint8)
    for kind in (NUMERIC, UNKNOWN):
        some = np.flatnonzero(classes == kind)
        for end, lead, shift in ((0x800, 0xC0, 0), (0x10000, 0xE0, 6), (0x110000, 0xF0, 12)):
            short, some = some[some < end], some[some >= end]
            pair = (lead | (short >> (shift + 6))) << 8 | 0x80 | ((short >> shift) & 0x3F)
            pairs[pair] |= kind
    return classes, pairs


def find_characters(
    data: np.ndarray, kinds: int, places: np.ndarray | None = None
) -> tuple[np.ndarray, ...]:
    """Characters outside ASCII of `kinds`, or that begin as one: places, classes, widths, codes.

    Parameters
    ----------
    data
        UTF-8, uint8 [n].
    places
        Where to look, int64; None looks everywhere.
    """
    classes, pairs = tables()
    if places is None:
        leads = np.flatnonzero(data >= 0xC2)
        begins = (data[leads].astype(np.uint16) << 8) | data[leads + 1]
        places = leads[pairs[begins] & kinds > 0]
    if len(places) == 0:
        return places, places, places, places
    codes, widths = _characters(data, places)
    return places, classes[codes], widths, codes


def find_unknown(text: bytes, places: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and code points, int64, of the characters that this Python's Unicode tables lack.

    Where the tables of an engine are newer than those of HF tokenizers, they split differently.
    `places` is where they may be, if that is known.
    """
    places, kinds, _, codes = find_characters(np.frombuffer(text, np.uint8), UNKNOWN, places)
    unknown = kinds == UNKNOWN
    return places[unknown], codes[unknown]


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
