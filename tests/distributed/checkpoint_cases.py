"""What the tests of checkpoints run on each rank."""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch

from tests.distributed.cases import _trainer, run_main


def run_with_slow_writer(argv: list[str], seconds: float) -> list[tuple[int, int, int | None]]:
    """`run_main` whose files take `seconds` each to write.

    Returns, for each checkpoint that was published: its iteration, the iteration that training had
    come to, and what the tracker said until then.
    """
    from fixedcode_megatron.training.checkpoint_files import read_tracker
    from fixedcode_megatron.training.checkpoint_save import CheckpointSaver

    _delay_writing(seconds)
    events, original = [], CheckpointSaver._publish

    def publish(self: Any, iteration: int) -> None:
        tracked = read_tracker(Path(self._options.save))
        events.append((iteration, self._trainer.state.iteration, tracked))
        original(self, iteration)

    CheckpointSaver._publish = publish  # type: ignore[method-assign]
    assert run_main(argv) == 0
    return events


def _delay_writing(seconds: float) -> None:
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    original = FileSystemWriterAsync.write_preloaded_data

    def write(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return original(*args, **kwargs)

    FileSystemWriterAsync.write_preloaded_data = staticmethod(write)


def run_killed_while_writing(argv: list[str], victim: int) -> int:
    """`run_main` of which rank `victim` is killed while forks of all ranks write iteration 4."""
    _kill_when_saving(4, lambda _: int(os.environ["RANK"]) == victim and _kill(os.getpid()))
    return run_main(argv)


def run_with_killed_writer(argv: list[str], victim: int) -> int:
    """`run_main` of which the fork that writes iteration 4 on rank `victim` is killed."""
    _kill_when_saving(
        4, lambda writer: int(os.environ["RANK"]) == victim and _kill(writer._process.pid)
    )
    return run_main(argv)


def _kill(process: int) -> None:
    time.sleep(0.2)
    os.kill(process, signal.SIGKILL)


def _kill_when_saving(iteration: int, kill: Any) -> None:
    from fixedcode_megatron.training.checkpoint_save import CheckpointSaver

    _delay_writing(1.0)
    original = CheckpointSaver.save

    def save(self: Any) -> None:
        original(self)
        if self._trainer.state.iteration == iteration:
            kill(self._pending.writer)

    CheckpointSaver.save = save  # type: ignore[method-assign]


def run_with_unwritable_tracker(argv: list[str], iteration: int) -> int:
    """`run_main` where the disk is full just when the tracker should move to `iteration`."""
    from fixedcode_megatron.training import checkpoint_files

    original = checkpoint_files.write_atomically

    def write(path: Path, text: str) -> None:
        if path.name == checkpoint_files.TRACKER and text == f"{iteration}\n":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        original(path, text)

    checkpoint_files.write_atomically = write
    return run_main(argv)


def run_killed_at_random(argv: list[str], seed: int, victim: int) -> int:
    """`run_main` of which rank `victim` is killed at a random moment of its second iteration.

    Or a little later: the moment is drawn from one and a half times the first one's length.
    """
    from fixedcode_megatron.training import loop

    original, started = loop.train_step, []

    def step(*args: Any) -> Any:
        started.append(time.monotonic())
        if len(started) == 2 and int(os.environ["RANK"]) == victim:
            delay = random.Random(seed).random() * 1.5 * (started[1] - started[0])
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return original(*args)

    loop.train_step = step
    return run_main(argv)


def plain_tensors(path: str) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, gathered by torch alone: no model, none of our code."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import FileSystemReader, TensorStorageMetadata

    metadata = FileSystemReader(path).read_metadata().state_dict_metadata
    state: dict[str, Any] = {
        key: torch.empty(value.size, dtype=value.properties.dtype)
        for key, value in metadata.items()
        if isinstance(value, TensorStorageMetadata)
    }
    checkpoint.load(state, storage_reader=FileSystemReader(path), no_dist=True)
    return state


def tensors_of(paths: list[Path]) -> list[dict[str, torch.Tensor]]:
    """The tensors of several checkpoints."""
    return [plain_tensors(str(path)) for path in paths]


def run_saving_what_was_loaded(argv: list[str], folder: Path) -> int:
    """`run_main`, with a checkpoint of the state right after loading written to `folder`."""
    from fixedcode_megatron.training import checkpoint_load

    original = checkpoint_load.load_checkpoint

    def load(trainer: Any, *args: Any, **kwargs: Any) -> None:
        original(trainer, *args, **kwargs)
        _save(trainer, folder)

    checkpoint_load.load_checkpoint = load
    return run_main(argv)


def _save(trainer: Any, folder: Path) -> None:
    from fixedcode_megatron.training.checkpoint_save import CheckpointSaver

    options = trainer.cfg.checkpoint
    before, options.save = options.save, str(folder)
    CheckpointSaver(trainer, tokenizer_fingerprint=None).save()
    options.save = before


def run_leaving_out(argv: list[str], words: str) -> int:
    """`run_main` whose checkpoints lack what has `words` in its name."""
    from fixedcode_megatron.training import checkpoint_state

    original = checkpoint_state.sharded_state

    def sharded_state(*args: Any, **kwargs: Any) -> dict[str, Any]:
        state = original(*args, **kwargs)
        if not kwargs["loading"]:
            state["model"] = {k: v for k, v in state["model"].items() if words not in k}
        return state

    checkpoint_state.sharded_state = sharded_state
    return run_main(argv)


def run_with_state_in_attention(argv: list[str]) -> int:
    """`run_main` with a core attention that has extra state, as Transformer Engine's has."""
    from fixedcode_megatron.model.layers import CoreAttention

    CoreAttention.get_extra_state = lambda self: torch.tensor([7])  # type: ignore[method-assign]
    CoreAttention.set_extra_state = lambda self, state: None  # type: ignore[method-assign]
    return run_main(argv)


def settings_of_each_step(argv: list[str]) -> list[list[tuple[float, float]]]:
    """Learning rate and weight decay of each parameter group at each iteration's update."""
    from fixedcode_megatron.training import loop

    original, settings = loop.train_step, []

    def step(trainer: Any, *args: Any) -> Any:
        groups = trainer.optimizer.param_groups
        settings.append([(group["lr"], group["weight_decay"]) for group in groups])
        return original(trainer, *args)

    loop.train_step = step
    assert run_main(argv) == 0
    return settings


def random_states(argv: list[str], folder: Path) -> tuple[list[bytes], list[bytes]]:
    """This rank's random states when it saved, and after other draws and loading."""
    import numpy as np
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    from fixedcode_megatron.training.checkpoint_files import checkpoint_path
    from fixedcode_megatron.training.checkpoint_load import load_checkpoint

    def seed(number: int) -> None:
        random.seed(number)
        np.random.seed(number)
        torch.manual_seed(number)
        states = get_cuda_rng_tracker().get_states()
        torch_state = torch.get_rng_state()
        get_cuda_rng_tracker().set_states({name: torch_state.clone() for name in states})

    def states() -> list[bytes]:
        tracked = get_cuda_rng_tracker().get_states()
        return [
            repr(random.getstate()).encode(),
            repr(np.random.get_state()[1].tolist()).encode(),  # type: ignore[union-attr]
            torch.get_rng_state().numpy().tobytes(),
            *(tracked[name].numpy().tobytes() for name in sorted(tracked)),
        ]

    trainer = _trainer(argv)
    seed(100 + int(os.environ["RANK"]))
    torch.rand(3)
    saved = states()
    _save(trainer, folder)
    seed(5)
    load_checkpoint(trainer, checkpoint_path(folder, 0))
    return saved, states()


def weights_at_start(argv: list[str]) -> dict[str, torch.Tensor]:
    """Parameters that a run starts with, as the entry point loads them."""
    from fixedcode_megatron.training.checkpoint_load import load_checkpoint
    from fixedcode_megatron.training.start import checkpoint_to_load

    trainer = _trainer(argv)
    source = checkpoint_to_load(trainer.cfg)
    if source is not None:
        load_checkpoint(trainer, source.path, weights_only=source.weights_only)
    assert trainer.state.iteration == 0
    named = trainer.models[0].module.named_parameters()
    return {name: parameter.detach().clone() for name, parameter in named}
