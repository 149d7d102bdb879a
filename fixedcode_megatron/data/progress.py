"""Progress of long work: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

logger = logging.getLogger(__name__)


class ByteProgress:
    """Progress through a known number of bytes, with tokens as a second count.

    Parameters
    ----------
    total_bytes
        Bytes of all inputs; 0 if that is not known.
    show
        True: a bar. False: nothing. None: a bar if stderr is a terminal, else log lines.
    interval
        Seconds between two lines.
    """

    def __init__(self, total_bytes: int, show: bool | None, interval: float = 10.0) -> None:
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._bar: Any = None
        if show or (show is None and terminal):
            from tqdm import tqdm

            self._bar = tqdm(
                total=total_bytes or None,
                unit="B",
                unit_scale=True,
                desc="tokenizing",
                file=sys.stderr,
            )
        self._lines = show is None and not terminal
        self._total = total_bytes
        self._interval = interval
        self._started = self._last = time.monotonic()
        self._bytes = self._tokens = 0

    def update(self, read_bytes: int, tokens: int) -> None:
        """Count `read_bytes` more bytes read and `tokens` more tokens written."""
        self._bytes += read_bytes
        self._tokens += tokens
        now = time.monotonic()
        seconds = max(now - self._started, 1e-9)
        if self._bar is not None:
            self._bar.update(read_bytes)
            self._bar.set_postfix_str(f"{self._tokens / seconds / 1e6:.2f} Mtok/s", refresh=False)
        elif self._lines and now - self._last >= self._interval:
            self._last = now
            rates = (
                f"{self._bytes / seconds / 1e6:.2f} MB/s, {self._tokens / seconds / 1e6:.2f} Mtok/s"
            )
            if self._total:
                left = max(self._total - self._bytes, 0) * seconds / max(self._bytes, 1)
                logger.info(
                    "%.0f %% of %.1f MB, %s, %.0f s left",
                    100 * self._bytes / self._total, self._total / 1e6, rates, left,
                )  # fmt: skip
            else:
                logger.info("%.1f MB, %s", self._bytes / 1e6, rates)

    def __enter__(self) -> ByteProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
