"""The run's figures as JSON lines: one row for each iteration reported, also over resumes."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, Any

from fixedcode_megatron.errors import UserError

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
SUPERSEDED_FILE = "metrics.superseded.jsonl"


class MetricsFile:
    """`metrics.jsonl` of a run folder, held by one run at a time.

    A run that was killed has reported iterations past its last checkpoint, and the run that goes on
    from there reports them again. Their first rows move to `metrics.superseded.jsonl`, so that
    every iteration has one row and nothing is lost. Nor does a full disk end the run: rows wait in
    memory until they can be written.

    Parameters
    ----------
    folder
        The run folder; made if it is not there.
    continue_from
        Rows of later iterations are superseded; None leaves all rows as they are.

    Raises
    ------
    UserError
        If another run has the file open.
    """

    def __init__(self, folder: Path, continue_from: int | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / METRICS_FILE).open("a+", encoding="utf-8")
        _lock(self._file, folder)
        if continue_from is not None:
            _set_aside(self._file, folder, continue_from)
        self._path, self._waiting, self._warned = folder / METRICS_FILE, b"", False

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row; numbers that are not finite, which JSON lacks, become null."""
        line = json.dumps({name: _finite(v) for name, v in row.items()}) + "\n"
        self._waiting += line.encode()
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._file.fileno(), self._waiting) :]
            self._warned = False
        except OSError as error:
            if not self._warned:
                logger.warning(
                    "%s cannot be written (%s): the run goes on, its figures wait in memory",
                    self._path,
                    error,
                )
            self._warned = True

    def close(self) -> None:
        """Close the file and let other runs have it."""
        if self._waiting:
            lost = self._waiting.decode(errors="replace")
            logger.warning("%s could not be written to the end; missing:\n%s", self._path, lost)
        self._file.close()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lock(file: IO[str], folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise UserError(
            f"another run is writing to {folder / METRICS_FILE}: end it, or give this run another "
            "--run-dir (and another --save)"
        ) from error
    except OSError:  # a file system without locks
        return


def _set_aside(file: IO[str], folder: Path, last: int) -> None:
    """Keep the rows up to iteration `last`; a row that was cut off by a crash is dropped."""
    file.seek(0)
    kept: list[str] = []
    superseded: list[str] = []
    for line in file:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        (kept if row["iteration"] <= last else superseded).append(line.rstrip("\n") + "\n")
    if superseded:
        with (folder / SUPERSEDED_FILE).open("a", encoding="utf-8") as archive:
            archive.writelines(superseded)
            archive.flush()
            os.fsync(archive.fileno())
    # In place: the lock belongs to this file, and a new one under the same name would not have it.
    file.seek(0)
    file.truncate()
    file.writelines(kept)
    file.flush()


@dataclass
class History:
    """The rows of one run in order of iterations.

    Attributes
    ----------
    train, validation
        Rows as `MetricsFile` wrote them.
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

    Empty where there is no such file.

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
            raise UserError(
                f"{path} line {number} is damaged: delete that line, or the folder to start anew"
            ) from error
        rows = {"train": history.train, "validation": history.validation}.get(row["kind"])
        if rows is not None:
            while rows and rows[-1]["iteration"] >= row["iteration"]:
                rows.pop()
            rows.append(row)
    return history
