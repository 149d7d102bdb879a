"""All files of a run: one dataset per key, the rejected lines, and the state to continue from."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from fixedcode_megatron.data.encoding import EncodedBlock, EncodedColumn
from fixedcode_megatron.data.engines import EngineError
from fixedcode_megatron.data.files import (
    flush_to_disk,
    holds,
    temporary_beside,
    write_text_whole,
)
from fixedcode_megatron.data.index_format import bin_path
from fixedcode_megatron.data.resumable import ResumableWriter
from fixedcode_megatron.data.work import Position
from fixedcode_megatron.data.workers import WorkerDied
from fixedcode_megatron.errors import UserError

logger = logging.getLogger(__name__)


class Output:
    """Files under temporary names until `commit()`.

    Leaving the `with` block by an interruption (a signal, a killed worker, a full disk) keeps
    what the last checkpoint covers, and the next run of the same job continues there; by any other
    error everything is removed.

    Parameters
    ----------
    prefix
        Of the run: the state is `{prefix}.resume.partial`, rejected lines are
        `{prefix}_rejected.jsonl`.
    dataset_prefixes
        One for each key.
    dtype
        Of the ids.
    job
        Fingerprint of everything that fixes the output.
    overwrite
        Replace existing datasets at `commit()`.
    interval
        Seconds between checkpoints; None makes none.
    """

    def __init__(
        self,
        prefix: str,
        dataset_prefixes: Sequence[str],
        dtype: np.dtype,
        job: str,
        *,
        overwrite: bool,
        interval: float | None,
    ) -> None:
        self._state_path = Path(f"{prefix}.resume.partial")
        self._rejected_path = Path(f"{prefix}_rejected.jsonl")
        self._rejected_partial = Path(f"{prefix}_rejected.jsonl.partial")
        self._rejected: IO[bytes] | None = None
        self._job, self._interval = job, interval
        self._last = time.monotonic()
        self._left_alone = False
        self.counts: Counter[str] = Counter()
        self.engine = ""
        self.writers: list[ResumableWriter] = []
        # A run that ended between the commits of two keys may replace what it wrote: its state,
        # which says so, stays until the next checkpoint.
        named = any(bin_path(one).exists() for one in dataset_prefixes)
        self._keeps_state = named and self._read_state() is not None
        overwrite = overwrite or self._keeps_state
        try:
            for path in dataset_prefixes:
                self.writers.append(ResumableWriter(path, dtype.type, overwrite=overwrite))
        except BaseException:
            for writer in self.writers:
                writer.suspend() if self._state_path.exists() else writer.abort()
            raise

    def begin(self, resume: bool | None) -> Position:
        """Take up an interrupted run of this job, or begin anew.

        Parameters
        ----------
        resume
            True: continue, and refuse if another job was interrupted here. None: continue if it is
            the same job. False: begin anew.

        Returns
        -------
        Position
            Where the inputs go on; `counts` and `engine` are the interrupted run's.
        """
        state = None if resume is False else self._read_state()
        if resume and state is None and self._state_path.exists():
            self._left_alone = True
            raise UserError(
                f"--resume: the interrupted run at {self._state_path} had other inputs, tokenizer "
                "or flags; run it again with those, or give --no-resume to begin anew"
            )
        if state is not None and not self._can_restore(state):
            state = None
        saved_writers = state["writers"] if state else [None] * len(self.writers)
        for writer, saved in zip(self.writers, saved_writers, strict=True):
            writer.restore(saved)
        if state is None:
            if not self._keeps_state:
                self._forget_state()
            self._rejected_partial.unlink(missing_ok=True)
            return Position()
        self.counts = Counter(state["counts"])
        if state["rejected_bytes"]:
            self._rejected = open(self._rejected_partial, "ab")  # noqa: SIM115
            self._rejected.truncate(state["rejected_bytes"])
        self.engine = state["engine"]
        position = Position(**state["position"])
        logger.info("continuing after %d tokens of the interrupted run", self.num_tokens)
        return position

    def _can_restore(self, state: dict[str, Any]) -> bool:
        """Whether the files still hold what the checkpoint counted."""
        for writer, saved in zip(self.writers, state["writers"], strict=True):
            if not writer.can_restore(saved):
                return False
        if not state["rejected_bytes"]:
            return True
        if not self._rejected_partial.exists():  # the run ended when the list had its name
            with contextlib.suppress(FileNotFoundError):
                self._rejected_path.replace(self._rejected_partial)
        return holds(self._rejected_partial, state["rejected_bytes"])

    def _read_state(self) -> dict[str, Any] | None:
        """State of an interrupted run of this job."""
        try:
            state = json.loads(self._state_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return state if state.get("job") == self._job else None

    @property
    def num_tokens(self) -> int:
        """Tokens so far, of all keys."""
        return sum(writer.num_tokens for writer in self.writers)

    def add(self, block: EncodedBlock, path: str, lines_before: int) -> None:
        """Append a block; `lines_before` lines of its file came before it."""
        for writer, column in zip(self.writers, block.columns, strict=True):
            if column.sequences is None:
                writer.add_documents(column.ids, column.lengths)
            else:
                writer.add_block(column.ids, column.lengths, column.sequences)
        self.counts.update(block.counts)
        for rejected in block.rejected:
            entry = {
                "file": path,
                "line": lines_before + rejected.line,
                "kind": rejected.kind,
                "reason": rejected.reason,
            }
            if self._rejected is None:
                self._rejected = open(self._rejected_partial, "wb")  # noqa: SIM115
            self._rejected.write(json.dumps(entry).encode() + b"\n")

    def checkpoint_if_due(self, position: Position) -> None:
        """Save everything every `interval` seconds; `position` is where the inputs go on."""
        if self._interval is not None and time.monotonic() - self._last >= self._interval:
            self.checkpoint(position)

    def checkpoint(self, position: Position) -> None:
        """Save everything, so that the same job can continue at `position`."""
        if self._rejected is not None:
            flush_to_disk(self._rejected)
        state = {
            "job": self._job,
            "engine": self.engine,
            "position": asdict(position),
            "counts": dict(self.counts),
            "rejected_bytes": self._rejected.tell() if self._rejected else 0,
            "writers": [writer.checkpoint() for writer in self.writers],
        }
        write_text_whole(self._state_path, json.dumps(state))
        self._last = time.monotonic()

    def commit(self, summaries: Sequence[dict[str, Any]]) -> None:
        """Give all files their names: rejected lines, summaries, `.bin`, `.idx`."""
        if self._rejected is not None:
            flush_to_disk(self._rejected)
            self._rejected_partial.replace(self._rejected_path)
        else:
            self._rejected_path.unlink(missing_ok=True)
        for writer, summary in zip(self.writers, summaries, strict=True):
            write_text_whole(Path(f"{writer.prefix}.json"), json.dumps(summary, indent=1))
            writer.commit()
        self._forget_state()

    def _forget_state(self) -> None:
        self._state_path.unlink(missing_ok=True)
        temporary_beside(self._state_path).unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove everything that is temporary."""
        for writer in self.writers:
            writer.abort()
        self._forget_state()
        self._rejected_partial.unlink(missing_ok=True)

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        kept = (WorkerDied, OSError, MemoryError, KeyboardInterrupt, SystemExit, EngineError)
        if self._left_alone or (isinstance(error, kept) and self._state_path.exists()):
            for writer in self.writers:
                writer.suspend()
            if not self._left_alone and not isinstance(error, EngineError):
                logger.warning("interrupted: the same command continues at the last checkpoint")
        else:
            self.discard()
        if self._rejected is not None:
            with contextlib.suppress(OSError):
                self._rejected.close()


def cut_to_tokens(block: EncodedBlock, tokens: int) -> None:
    """Keep the documents of a block up to the one that reaches `tokens`, all keys together."""
    sizes = [_document_tokens(column) for column in block.columns]
    reached = np.cumsum(np.sum(sizes, axis=0, dtype=np.int64))
    keep = int(np.searchsorted(reached, tokens)) + 1
    for column, size in zip(block.columns, sizes, strict=True):
        if column.sequences is None:
            column.lengths = column.lengths[:keep]
        else:
            column.sequences = column.sequences[:keep]
            column.lengths = column.lengths[: int(column.sequences.sum())]
        column.ids = column.ids[: int(size[:keep].sum(dtype=np.int64))]


def _document_tokens(column: EncodedColumn) -> np.ndarray:
    if column.sequences is None:
        return column.lengths
    ends = np.concatenate(([0], np.cumsum(column.lengths, dtype=np.int64)))
    return np.diff(ends[np.concatenate(([0], np.cumsum(column.sequences)))])
