"""Characters newer than some Unicode tables: does an engine take them for unassigned?

An engine's tables can be newer than those of HF tokenizers; then a letter of the latest Unicode
splits the text around it differently. An engine cannot be asked for its tables, but its ids tell:
behind a letter or a number, 's is a piece by itself; behind a symbol or a character that is not
assigned, the apostrophe belongs to that, and the s stands alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

# A character of each class that is no token and as old as any table, or, for "D", a number since
# Unicode 17: the Digits splitter of HF tokenizers has tables of its own, the newest ones.
_OF_CLASS = {"L": 0x16A00, "N": 0x16A60, "M": 0x1DA00, "D": 0x11DE0}
_UNASSIGNED = 0x0378
_SPLITTERS = {"Sequence", "Split", "Digits", "ByteLevel"}


def split_classes(tree: dict) -> str | None:
    """By which classes of characters a `tokenizer.json` splits text: "LN", with "M" and "D".

    None if it also looks at others, such as punctuation, or normalizes.
    """
    splitter = tree.get("pre_tokenizer") or {}
    parts = [splitter, *splitter.get("pretokenizers", [])]
    kinds = {part.get("type") for part in parts}
    patterns = " ".join(part.get("pattern", {}).get("Regex", "") for part in parts)
    names = re.findall(r"\\[pP]\{?\^?(\w+)", patterns)
    others = [name for name in names if not re.fullmatch("[LNM][a-z]?", name)]
    others += re.findall(r"\\[wWdDbBhH]|\[:", patterns)
    if tree.get("normalizer") or kinds - _SPLITTERS or others:
        return None
    return "LN" + "M" * any(name[0] == "M" for name in names) + "D" * ("Digits" in kinds)


class UnassignedCharacters:
    """Which characters an engine takes for unassigned, or as good as that.

    Parameters
    ----------
    encode
        Ids of UTF-8 text, uint32 [n].
    classes
        See `split_classes`; with None no character is taken for unassigned.
    """

    def __init__(self, encode: Callable[[bytes], np.ndarray], classes: str | None) -> None:
        self._encode = encode
        self._classes = classes
        self._s: list[int] = []
        self._answers: dict[int, bool] = {}
        self._unproven: list[int] = []

    def find(self, codes: np.ndarray) -> np.ndarray:
        """Which of these code points, int64 [n], are taken for unassigned: bool [n]."""
        distinct, places = np.unique(codes, return_inverse=True)
        return np.array([self._ask(code) for code in distinct.tolist()], np.bool_)[places]

    def proofs(self) -> list[str]:
        """Texts of the characters found since the last call, to be compared with HF tokenizers."""
        characters, self._unproven = map(chr, self._unproven), []
        return [f"{c}'s {c} a{c}b 1{c}2  {c}{c}" for c in characters]

    def _ask(self, code: int) -> bool:
        if not self._answers and not self._can_tell():
            self._classes = None
        if code not in self._answers:
            found = self._classes is not None and self._leaves_s_alone(code)
            self._answers[code] = found
            if found:
                self._unproven.append(code)
        return self._answers[code]

    def _can_tell(self) -> bool:
        """Whether this vocabulary shows the difference."""
        self._s = self._encode(b"s").tolist()
        others = [self._leaves_s_alone(_OF_CLASS[name]) for name in self._classes or ""]
        return self._leaves_s_alone(_UNASSIGNED) and not any(others)

    def _leaves_s_alone(self, code: int) -> bool:
        return self._encode(f"{chr(code)}'s".encode())[-1:].tolist() == self._s
