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
from collections.abc import Sequence

import numpy as np

_SPACE, _DIGIT, _NUMERIC, _ODD, _UNKNOWN = 1, 2, 4, 8, 16
_ASCII = bytes(
    _SPACE if byte in b"\t\n\x0b\x0c\r " else _DIGIT if 48 <= byte <= 57 else 0
    for byte in range(256)
)
_CUT = bytes([_SPACE, _SPACE, _DIGIT])
# White_Space outside ASCII.
_SPACES = (0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
_LAST_NUMERIC = 0x20000  # above: ideographs, tags, private use, or not assigned


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
def _classes() -> np.ndarray:
    """What to do at each code point, uint8 [0x110000]."""
    table = np.zeros(0x110000, np.uint8)
    table[:128] = np.frombuffer(_ASCII[:128], np.uint8)
    category = unicodedata.category
    for code in range(0x80, _LAST_NUMERIC):
        if (kind := category(chr(code)))[0] == "N":
            table[code] = _NUMERIC | _ODD
        elif kind == "Cn":  # newer Unicode versions may have made it a number
            table[code] = _UNKNOWN
    table[list(_SPACES)] = _SPACE | _ODD
    table[_LAST_NUMERIC:0xE0000] = 0
    return table


class DigitCutter:
    """Cuts documents so that GPT-2's splitting of the pieces equals digits-first splitting."""

    def cut(self, texts: Sequence[str]) -> tuple[list[bytes], np.ndarray, set[int]]:
        """Pieces of all documents, as UTF-8.

        Returns
        -------
        pieces
            One or more for each document, in order.
        counts
            Number of pieces of each document, int64 [texts].
        unknown
            Documents that hold characters this Python's Unicode tables lack.
        """
        pieces: list[bytes] = []
        counts = np.ones(len(texts), np.int64)
        unknown: set[int] = set()
        for i, text in enumerate(texts):
            if not text.isascii():
                classes = _classes()[np.frombuffer(text.encode("utf-32-le"), "<u4")]
                highest = classes.max()
                if highest >= _UNKNOWN:
                    unknown.add(i)
                if highest >= _ODD:
                    counts[i] = _cut_unicode(text, classes, pieces)
                    continue
            counts[i] = _cut_ascii(text.encode(), pieces)
        return pieces, counts, unknown


def _cut_ascii(data: bytes, pieces: list[bytes]) -> int:
    """Cut where only ASCII characters matter."""
    classes = data.translate(_ASCII)
    found = classes.find(_CUT)
    begin, count = 0, 1
    while found >= 0:
        pieces.append(data[begin : found + 2])
        begin = found + 2
        count += 1
        found = classes.find(_CUT, begin)
    pieces.append(data[begin:])
    return count


def _cut_unicode(text: str, classes: np.ndarray, pieces: list[bytes]) -> int:
    """Cut around every numeric character outside ASCII, and before digits after 2 spaces."""
    space = (classes & _SPACE) > 0
    numeric = (classes & _NUMERIC) > 0
    before = numeric.copy()
    before[1:] |= numeric[:-1]
    before[2:] |= ((classes[2:] & _DIGIT) > 0) & space[1:-1] & space[:-2]
    before[0] = False
    ends = [*np.flatnonzero(before).tolist(), len(text)]
    begin = 0
    for end in ends:
        pieces.append(text[begin:end].encode())
        begin = end
    return len(ends)
