"""What the tests of folders, disks and determinism run on each rank."""

from __future__ import annotations

import os
from typing import Any

from tests.distributed.cases import _trainer, run_main


def expected_checkpoint_bytes(argv: list[str]) -> int:
    """The size that is expected of a run's checkpoints."""
    from fixedcode_megatron.training.folders import checkpoint_bytes

    return checkpoint_bytes(_trainer(argv))


def number_of_parameters(argv: list[str]) -> int:
    """Parameters of the whole model, as every rank counts them."""
    from fixedcode_megatron.training import folders

    return folders.number_of_parameters(_trainer(argv))


def with_full_disk(argv: list[str]) -> int:
    """`run_main` on a disk with 1 MiB left."""
    import shutil
    import types

    from fixedcode_megatron.training import folders

    usage: Any = types.SimpleNamespace(disk_usage=lambda _: shutil._ntuple_diskusage(1, 1, 2**20))  # type: ignore[attr-defined]
    folders.shutil = usage
    return run_main(argv)


def deterministic_settings(argv: list[str]) -> dict[str, Any]:
    """What is set after start-up."""
    import torch

    from fixedcode_megatron import determinism

    trainer = _trainer(argv)
    cudnn = torch.backends.cudnn
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn": (cudnn.deterministic, cudnn.benchmark),
        **{name: os.environ[name] for name in determinism.ENVIRONMENT},
        "megatron-core": trainer.config.deterministic_mode,
    }


def digest_of_the_end(argv: list[str]) -> str:
    """A digest of weights and optimizer state after the run."""
    import hashlib

    import torch

    from fixedcode_megatron.training import loop

    original, digest = loop.train, hashlib.sha256()

    def train(trainer: Any, *args: Any, **options: Any) -> int:
        status = original(trainer, *args, **options)
        tensors = [p.data for model in trainer.models for p in model.parameters()]
        for optimizer in trainer.optimizer.chained_optimizers:
            for state in optimizer.optimizer.state.values():
                tensors += [value for value in state.values() if value.dim()]
        assert len(tensors) > 3
        for tensor in tensors:
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return status

    loop.train = train
    assert run_main(argv) == 0
    return digest.hexdigest()
