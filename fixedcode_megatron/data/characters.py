"""Characters outside ASCII in UTF-8 text: numbers, and what this Python's Unicode tables lack."""

from __future__ import annotations

import functools
import unicodedata

import numpy as np

NUMERIC, UNKNOWN = 1, 2
_LAST = 0x34000  # above: tags, private use, or not assigned


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
    codes = np.arange(0x80, _LAST)
    characters = codes.astype("<u4").tobytes().decode("utf-32-le", errors="surrogatepass")
    names = "".join(map(unicodedata.category, characters)).encode()
    first, second = np.frombuffer(names, np.uint8).reshape(-1, 2).T
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
