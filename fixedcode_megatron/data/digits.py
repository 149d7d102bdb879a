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
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Which characters outside ASCII matter, and how their UTF-8 begins.

    Returns
    -------
    classes
        `_NUMERIC`, `_UNKNOWN` or 0 of each code point, uint8 [0x110000].
    pairs
        Whether a character that matters begins with this pair of bytes, bool [65536].
    """
    codes = np.arange(0x80, _LAST_NUMERIC)
    kinds = np.array([unicodedata.category(chr(code)) for code in codes.tolist()])
    classes = np.zeros(0x110000, np.uint8)
    classes[codes[np.char.startswith(kinds, "N")]] = _NUMERIC
    classes[codes[kinds == "Cn"]] = _UNKNOWN  # newer Unicode versions may have made it a number
    odd = np.flatnonzero(classes)
    pairs = np.zeros(1 << 16, bool)
    for end, lead, shift in ((0x800, 0xC0, 0), (0x10000, 0xE0, 6), (0x110000, 0xF0, 12)):
        some, odd = odd[odd < end], odd[odd >= end]
        pairs[((lead | (some >> (shift + 6))) << 8) | 0x80 | ((some >> shift) & 0x3F)] = True
    return classes, pairs


def _look_up(classes: np.ndarray, codes: np.ndarray) -> None:
    """Settle what characters are that this Python's Unicode tables lack: ask HF tokenizers."""
    from tokenizers.pre_tokenizers import Digits

    splitter = Digits(individual_digits=True)
    for code in set(codes.tolist()):
        is_split_off = len(splitter.pre_tokenize_str(f"a{chr(code)}a")) == 3
        classes[code] = _NUMERIC if is_split_off else 0


def find_cuts(text: bytes) -> np.ndarray:
    """Where to cut UTF-8 text so that GPT-2's splitting of the pieces is digits-first splitting.

    A cut before a digit is never wrong. It is needed after two white spaces, and made after every
    character outside ASCII, which may be one.

    Returns
    -------
    np.ndarray
        Offsets, int64, increasing.
    """
    data = np.frombuffer(text, np.uint8)
    digits = np.flatnonzero(data[2:] - np.uint8(48) < 10) + 2
    last, before = data[digits - 1], data[digits - 2]
    cuts = digits[(last >= 0x80) | (_SPACE[last] & (_SPACE[before] | (before >= 0x80)))]
    leads = np.flatnonzero(data >= 0xC2)
    if len(leads) == 0:
        return cuts
    classes, pairs = _tables()
    hits = leads[pairs[(data[leads].astype(np.uint16) << 8) | data[leads + 1]]]
    codes, widths = _characters(data, hits)
    is_unknown = classes[codes] == _UNKNOWN
    if is_unknown.any():
        _look_up(classes, codes[is_unknown])
    numeric = classes[codes] == _NUMERIC
    if numeric.any():
        starts = hits[numeric]
        cuts = np.unique(np.concatenate((cuts, starts, starts + widths[numeric])))
    return cuts


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
