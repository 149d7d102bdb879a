"""SmolLM2-style splitting (each digit alone, then GPT-2's pattern) for engines without it.

Such a vocabulary joins no digit with anything. Then splitting off the digits changes GPT-2's
pieces only in two places: where two or more whitespace characters precede a digit (the pattern
would leave the last one to the digit), and around numeric characters outside ASCII. Text cut there
and encoded piece by piece gets the same ids.
"""

from __future__ import annotations

import ctypes
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
    merges = model["merges"]
    spelled = merges if merges and isinstance(merges[0], str) else map("".join, merges)
    return not re.search("[0-9]", "\n".join(spelled))


def cut_digits(
    text: bytes, marker: bytes, places: np.ndarray | None = None
) -> tuple[bytes, int, tuple[np.ndarray, np.ndarray]]:
    """Mark in UTF-8 text where GPT-2's splitting of the pieces is digits-first splitting.

    A cut before a digit is never wrong. It is needed after two white spaces, and made after every
    character outside ASCII, which may be one. `places` is where numeric and unknown characters may
    be, if that is known.

    Returns
    -------
    marked
        The text with `marker` at each cut.
    num_cuts
        How many there are.
    unknown
        As `characters.find_unknown`, in `text`.
    """
    data = np.frombuffer(text, np.uint8)
    places, kinds, widths, codes = find_characters(data, NUMERIC | UNKNOWN, places)
    is_numeric, is_unknown = kinds == NUMERIC, kinds == UNKNOWN
    numeric = places[is_numeric], widths[is_numeric]
    insert = _insert_markers if library() is None else _insert_markers_compiled
    return *insert(text, marker, *numeric), (places[is_unknown], codes[is_unknown])


def _insert_markers(
    text: bytes, marker: bytes, starts: np.ndarray, widths: np.ndarray
) -> tuple[bytes, int]:
    data = np.frombuffer(text, np.uint8)
    digits = np.flatnonzero(data[2:] - np.uint8(48) < 10) + 2
    last, before = data[digits - 1], data[digits - 2]
    digits = digits[(last >= 0x80) | (_SPACE[last] & (_SPACE[before] | (before >= 0x80)))]
    cuts = np.unique(np.concatenate((digits, starts, starts + widths))).tolist()
    return marker.join([text[i:j] for i, j in pairwise([0, *cuts, len(text)])]), len(cuts)


def _insert_markers_compiled(
    text: bytes, marker: bytes, starts: np.ndarray, widths: np.ndarray
) -> tuple[bytes, int]:
    built = library()
    assert built is not None
    num_cuts, size = ctypes.c_int64(), len(text) + len(text) // 4
    while True:
        marked = np.empty(size, np.uint8)
        size = built.cut_digits(
            *(text, len(text), starts.ctypes.data, widths.ctypes.data, len(starts)),
            *(marker, len(marker), marked.ctypes.data, len(marked), ctypes.byref(num_cuts)),
        )
        if size <= len(marked):
            return marked[:size].tobytes(), num_cuts.value
