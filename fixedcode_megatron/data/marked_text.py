"""Many documents as one UTF-8 text, which an engine encodes in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fixedcode_megatron.data.engines import END

END_BYTES = END.encode()
# Both characters of the markers begin with this byte. One alone in a text can already be taken for
# a part of the marker beside it. A single byte is searched for many times faster than several, and
# the few texts with another character of Unicode's last plane lose nothing but time.
_MARKER_START = END_BYTES[:1]


@dataclass(frozen=True)
class MarkedText:
    """Documents, each with the marker `END` behind it.

    Attributes
    ----------
    data
        UTF-8.
    bounds
        Where each document's marker is, int64 [documents].
    places
        Of the characters that may be of the kinds asked for, and perhaps others, see
        `characters.find_characters`; None if nobody looked for them.
    left_out
        Documents with a character of the markers, by number; in `data` they are empty.
    """

    data: bytes
    bounds: np.ndarray
    places: np.ndarray | None = None
    left_out: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Sequence[str]) -> MarkedText:
        """Join some texts."""
        data = [text.encode() for text in texts]
        left_out = {i: texts[i] for i, one in enumerate(data) if _MARKER_START in one}
        for i in left_out:
            data[i] = b""
        lengths = np.fromiter(map(len, data), np.int64, len(data))
        bounds = np.cumsum(lengths + len(END_BYTES)) - len(END_BYTES)
        return cls(END_BYTES.join([*data, b""]), bounds, None, left_out)

    def __len__(self) -> int:
        return len(self.bounds)

    def text(self, index: int) -> str:
        """One document."""
        if index in self.left_out:
            return self.left_out[index]
        return self.data[self._begin(index) : int(self.bounds[index])].decode()

    def piece(self, size: int) -> str:
        """Up to `size` bytes of one document, from a place that is always another."""
        if not len(self):
            return ""
        index = len(self.data) % len(self)
        begin, end = self._begin(index), int(self.bounds[index])
        begin += len(self.data) % max(1, end - begin - size)
        return self.data[begin : min(end, begin + size)].decode(errors="ignore")

    def _begin(self, index: int) -> int:
        return int(self.bounds[index - 1]) + len(END_BYTES) if index else 0
