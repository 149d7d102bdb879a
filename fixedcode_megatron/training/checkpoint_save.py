"""Saving a run through megatron.core.dist_checkpointing (format torch_dist)."""

from __future__ import annotations

import inspect
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelSaveStrategyWrapper,
)
from torch.distributed.checkpoint.api import CheckpointException

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.training import checkpoint_files as files
from fixedcode_megatron.training import checkpoint_integrity, checkpoint_state, checkpoint_writer
from fixedcode_megatron.training.agreement import one_rank_decides
from fixedcode_megatron.training.checkpoint_writer import BackgroundWriter
from fixedcode_megatron.training.trainer import Trainer

logger = logging.getLogger(__name__)


@dataclass
class _Pending:
    """A checkpoint that is being written in the background."""

    iteration: int
    request: Any
    writer: BackgroundWriter
    vote: tuple[Any, torch.Tensor] | None = None


class CheckpointSaver:
    """Saves the checkpoints of a run; every rank must call the same methods in the same order.

    With `--async-save` a checkpoint is a snapshot of the iteration that asked for it, written while
    training goes on. In either mode the folder gets its final name, the tracker moves and old
    checkpoints go when all ranks have written, never before.
    """

    def __init__(self, trainer: Trainer, *, tokenizer_fingerprint: str | None) -> None:
        self._trainer = trainer
        self._options = trainer.cfg.checkpoint
        self._fingerprint = tokenizer_fingerprint
        self._pending: _Pending | None = None
        self._last = trainer.state.iteration
        checkpoint_writer.install()

    @property
    def is_wanted(self) -> bool:
        """Whether the current iteration has still to be saved."""
        return self._options.save is not None and self._last != self._trainer.state.iteration

    def save(self) -> None:
        """Save the current iteration; waits for the checkpoint before it.

        Raises
        ------
        UserError
            If it, or the one before, could not be written. The others are as they were.
        """
        self.wait()
        iteration = self._last = self._trainer.state.iteration
        with self._told_why(iteration):
            request = self._start(iteration)
            if self._options.async_save:
                self._pending = _Pending(iteration, request, BackgroundWriter(request))
            else:
                request.execute_sync()
                self._publish(iteration)

    def poll(self) -> None:
        """Publish the pending checkpoint if all ranks have written theirs; waits for none.

        As in `StopRequests`, a call starts a reduction and reads the one before.
        """
        pending = self._pending
        if pending is None:
            return
        done = torch.tensor(int(pending.writer.is_done()), device=self._trainer.runtime.device)
        before, pending.vote = pending.vote, None
        if before is not None:
            before[0].wait()
            if before[1].item():
                self._finish()
                return
        pending.vote = (dist.all_reduce(done, op=dist.ReduceOp.MIN, async_op=True), done)

    def wait(self) -> None:
        """Wait for the pending checkpoint and publish it."""
        if self._pending is not None:
            if self._pending.vote is not None:
                self._pending.vote[0].wait()
            self._finish()

    def _finish(self) -> None:
        pending, self._pending = self._pending, None
        assert pending is not None
        with self._told_why(pending.iteration):
            pending.writer.finish()
            for finalize in pending.request.finalize_fns:
                finalize()
            self._publish(pending.iteration)

    def _start(self, iteration: int) -> Any:
        """Plan the checkpoint; returns megatron-core's request to write it."""
        root = Path(self._options.save or "")
        one_rank_decides(lambda: files.prepare(root, iteration), error=OSError)
        with self._trainer.parameters_gathered():
            state = checkpoint_state.sharded_state(
                self._trainer,
                loading=False,
                optimizer=not self._options.no_save_optim,
                rng=not self._options.no_save_rng,
            )
            state |= checkpoint_state.common_state(self._trainer, self._fingerprint)
            return dist_checkpointing.save(
                state,
                str(files.partial_path(root, iteration)),
                sharded_strategy=_strategy(),
                async_sharded_save=True,
                content_metadata=checkpoint_state.content_metadata(),
                **_writer_of_megatron_core(),
            )

    def _publish(self, iteration: int) -> None:
        """Commit what all ranks have written, then let old checkpoints go."""
        root, options = Path(self._options.save or ""), self._options

        def publish() -> None:
            partial = files.partial_path(root, iteration)
            (partial / "config.yaml").write_text(self._trainer.cfg.to_yaml(), encoding="utf-8")
            checkpoint_integrity.record(partial, checksums=options.verify_integrity)
            path = files.publish(root, iteration)
            logger.info("saved checkpoint %s", path)
            files.remove_old(
                root,
                options.keep_last_checkpoints,
                retain_interval=options.save_retain_interval,
                newest=iteration,
            )

        one_rank_decides(publish, error=OSError)

    @contextmanager
    def _told_why(self, iteration: int) -> Iterator[None]:
        try:
            yield
        except (OSError, CheckpointException, CheckpointingException) as error:
            message = _why_not_saved(Path(self._options.save or ""), iteration, error)
            raise UserError(message) from error


def _strategy() -> FullyParallelSaveStrategyWrapper:
    """Each rank writes an equal share of what its data-parallel copies hold in common."""
    try:
        strategy = get_default_save_sharded_strategy("torch_dist", 1)
    except TypeError:  # megatron-core 0.17 dropped the version argument
        strategy = get_default_save_sharded_strategy("torch_dist")
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return FullyParallelSaveStrategyWrapper(strategy, group)


def _writer_of_megatron_core() -> dict[str, str]:
    """Newer releases would look for another package's writer."""
    known = inspect.signature(dist_checkpointing.save).parameters
    return {"async_strategy": "mcore"} if "async_strategy" in known else {}


def _why_not_saved(root: Path, iteration: int, error: BaseException) -> str:
    causes = [str(error)]
    if isinstance(error, CheckpointException):  # torch's, with each rank's own exception inside
        causes = sorted({str(cause) for cause, _ in error.failures.values()})
    if dist.get_rank() == 0:
        shutil.rmtree(files.partial_path(root, iteration), ignore_errors=True)
    try:
        room = f"{shutil.disk_usage(root).free / 2**30:.1f} GiB are free there"
        newest = f"the newest whole one is of iteration {files.read_tracker(root)}"
    except OSError:
        room, newest = "the folder cannot be read", "see what is left of it"
    return (
        f"the checkpoint of iteration {iteration} could not be written to {root}: "
        f"{'; '.join(causes) or 'see the other ranks'} ({room}); {newest}. Make room or choose "
        "another --save, then start again"
    )
