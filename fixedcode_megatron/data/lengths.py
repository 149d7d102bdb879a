"""How long the documents of a dataset are, in constant memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fixedcode_megatron.data.indexed import IndexedDatasetReader
from fixedcode_megatron.errors import UserError

_CHUNK = 1 << 20
_EXACT = 1 << 20  # lengths below this are counted one by one
_BAR = 50


def document_lengths(reader: IndexedDatasetReader, chunk: int = _CHUNK) -> Iterator[np.ndarray]:
    """Tokens of each document, int64, in chunks of documents."""
    for first in range(0, reader.num_documents, chunk):
        ends = np.asarray(reader.document_indices[first : first + chunk + 1])
        base = int(ends[0])
        sequences = reader.sequence_lengths[base : int(ends[-1])]
        sums = np.concatenate(([0], np.cumsum(sequences, dtype=np.int64)))
        yield np.diff(sums[ends - base])


class LengthCounts:
    """How many documents have which length; at most 8 MB, plus 8 bytes per document over 2^20."""

    def __init__(self) -> None:
        self._counts = np.zeros(_EXACT, np.int64)
        self._long = array("q")
        self.documents = 0
        self.tokens = 0

    def add(self, lengths: np.ndarray) -> None:
        """Count documents of these lengths, int64 [n]."""
        self.documents += len(lengths)
        self.tokens += int(lengths.sum())
        short = lengths < _EXACT
        found = np.bincount(lengths[short])
        self._counts[: len(found)] += found
        self._long.frombytes(np.sort(lengths[~short]).astype(np.int64).tobytes())

    @property
    def empty(self) -> int:
        """Documents without a token."""
        return int(self._counts[0])

    def quantile(self, share: float) -> int:
        """The smallest length that at least `share` of the documents do not exceed."""
        assert 0 <= share <= 1 and self.documents > 0
        rank = max(1, int(np.ceil(share * self.documents)))
        below = np.cumsum(self._counts)
        if rank <= below[-1]:
            return int(np.searchsorted(below, rank))
        return sorted(self._long)[rank - 1 - int(below[-1])]

    def bins(self) -> list[tuple[int, int, int]]:
        """(lowest, highest, documents) for 0, 1, 2-3, 4-7 ..., from the first to the last used."""
        longest = self.quantile(1.0)
        result = [(0, 0, self.empty)]
        low = 1
        while low <= longest:
            high = 2 * low - 1
            count = int(self._counts[low : high + 1].sum()) if low < _EXACT else 0
            count += sum(low <= length <= high for length in self._long)
            result.append((low, high, count))
            low *= 2
        while len(result) > 1 and result[0][2] == 0:
            result.pop(0)
        return result


def text_histogram(counts: LengthCounts) -> str:
    """Bars of `#`, one line for each power of two."""
    bins = counts.bins()
    most = max(number for _, _, number in bins)
    lines = [f"{'tokens':>21}  {'documents':>12}"]
    for low, high, number in bins:
        span = f"{low:,}" if low == high else f"{low:,}-{high:,}"
        bar = "#" * -(-_BAR * number // most)
        lines.append(f"{span:>21}  {number:>12,}  {bar}".rstrip())
    return "\n".join(lines)


def draw_histogram(counts: LengthCounts, title: str, path: Path) -> None:
    """Write the histogram as a picture (PNG, or what the name's ending says).

    Raises
    ------
    UserError
        If matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise UserError(
            "a picture needs matplotlib: pip install matplotlib, or use --histogram text"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    bins = counts.bins()
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.bar(range(len(bins)), [number for _, _, number in bins], width=0.9)
    labels = [f"{low:,}" for low, _, _ in bins]
    axes.set_xticks(range(len(bins)), labels, rotation=45, ha="right")
    axes.set_xlabel("tokens in a document (from this number to the next)")
    axes.set_ylabel("documents")
    axes.set_title(f"{title}: {counts.documents:,} documents, {counts.tokens:,} tokens")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
