"""Reads the metrics.jsonl of a run back, however often the run was interrupted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from fixedcode_megatron.errors import UserError


@dataclass
class History:
    """The lines of one run in order of iterations.

    Attributes
    ----------
    train, validation
        Rows as `MetricsLogger` wrote them.
    """

    train: list[dict[str, Any]] = field(default_factory=list)
    validation: list[dict[str, Any]] = field(default_factory=list)

    @property
    def data_checksum(self) -> int:
        """Sum of the CRC-32 of every training sample; equal for runs that read the same samples."""
        return sum(row["data checksum"] for row in self.train)

    @property
    def tokens_per_second(self) -> float:
        """Median over the log lines, so that a busy moment of the machine does not count."""
        return median(row["tokens per second"] for row in self.train)

    def has_ended(self, train_iters: int) -> bool:
        """Whether training and its last evaluation are in it."""
        ends = [rows[-1]["iteration"] if rows else 0 for rows in (self.train, self.validation)]
        return min(ends) >= train_iters


def read_history(path: Path) -> History:
    """Read a metrics file; of lines that a continued run wrote again, the later ones count.

    Raises
    ------
    UserError
        If a line other than the last is no JSON.
    """
    history = History()
    if not path.is_file():
        return history
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):  # a run that was killed while it wrote
                break
            raise UserError(f"{path} line {number} is damaged: delete that folder") from error
        rows = {"train": history.train, "validation": history.validation}.get(row["kind"])
        if rows is not None:
            while rows and rows[-1]["iteration"] >= row["iteration"]:
                rows.pop()
            rows.append(row)
    return history


def smoothed(values: list[float], weight: float = 0.6) -> list[float]:
    """Exponential moving average that starts at the first value.

    `y[i] = weight * y[i - 1] + (1 - weight) * x[i]`
    """
    result: list[float] = []
    for value in values:
        result.append(weight * result[-1] + (1 - weight) * value if result else value)
    return result
