"""JSON lines straight to UTF-8, by compiled code where there is a C++ compiler.

It does what is certain: the string under one key of valid JSON objects. A block with any other line
is for `documents.parse_lines`, which reads the same from such lines, several times slower.
"""

from __future__ import annotations

import ctypes

import numpy as np

from fixedcode_megatron.data.characters import tables
from fixedcode_megatron.data.compiled import library
from fixedcode_megatron.data.marked_text import END_BYTES, MarkedText

_LARGEST_KEPT = 16 << 20  # buffers for longer blocks are not kept
_PLACES = 16  # one for so many bytes: such characters are rare


class JsonLinesReader:
    """Reads the string under one key of each line.

    Parameters
    ----------
    key
        The key.
    kinds
        Of characters to look for, see `characters`.
    """

    def __init__(self, key: str, kinds: int) -> None:
        self._key, self._kinds = key.encode(errors="surrogatepass"), kinds
        self._library = library() if self._key else None
        self._size = -1

    def read(self, data: bytes) -> MarkedText | None:
        """The documents of whole lines; None if not every line is plain, or nothing is compiled."""
        if self._library is None or not data:
            return None
        if self._size < len(data):
            self._make_buffers(len(data))
        classes, pairs = tables()
        num_places = ctypes.c_int64()
        documents = self._library.json_lines_read(
            *(data, len(data), self._key, len(self._key), END_BYTES, len(END_BYTES)),
            *(classes.ctypes.data, pairs.ctypes.data, self._kinds, self._text.ctypes.data),
            *(self._ends.ctypes.data, self._places.ctypes.data, len(self._places)),
            ctypes.byref(num_places),
        )
        text = None
        if documents >= 0:
            bounds = self._ends[:documents].copy()
            size = int(bounds[-1]) + len(END_BYTES)
            places = self._places[: num_places.value].copy()
            text = MarkedText(self._text[:size].tobytes(), bounds, places)
        if self._size > _LARGEST_KEPT:
            self._make_buffers(0)
        return text

    def _make_buffers(self, size: int) -> None:
        """For blocks of up to `size` bytes: what json_lines.cpp asks for."""
        self._size = size
        self._text = np.empty(size + 64, np.uint8)
        self._ends = np.empty(size // 8 + 2, np.int64)
        self._places = np.empty(size // _PLACES + 16, np.int64)
