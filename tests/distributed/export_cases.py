"""What the tests of export run on each rank."""

from __future__ import annotations

import zlib
from typing import Any

import torch

from tests.distributed.cases import _trainer


def save_random(cases: dict[str, list[str]], ids: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Save models of random weights, biases and norms; their logits of `ids`, if given, by case."""
    from fixedcode_megatron import runtime
    from fixedcode_megatron.training.checkpoint_save import CheckpointSaver

    logits = {}
    for name, argv in cases.items():
        if logits:
            runtime.shutdown()
        trainer = _trainer(argv)
        _randomize(trainer)
        CheckpointSaver(trainer, tokenizer_fingerprint=None).save()
        if ids is not None:
            logits[name] = _logits(trainer, ids)
    return logits


def load_and_run(argv: list[str], ids: torch.Tensor) -> torch.Tensor:
    """Logits of `ids` by the weights that `--load` names."""
    from pathlib import Path

    from fixedcode_megatron.training.checkpoint_choice import find_checkpoint
    from fixedcode_megatron.training.checkpoint_load import load_checkpoint

    trainer = _trainer(argv)
    path = find_checkpoint(Path(trainer.cfg.checkpoint.load))
    assert path is not None
    load_checkpoint(trainer, path, weights_only=True)
    return _logits(trainer, ids)


def _randomize(trainer: Any) -> None:
    """Weights far from their start, so that a wrong place of any one shows in the logits."""
    import torch.distributed as dist

    with torch.no_grad():
        for chunk in trainer.models:
            for name, parameter in chunk.named_parameters():
                seed = zlib.crc32(f"{name} {dist.get_rank()}".encode())
                generator = torch.Generator().manual_seed(seed)
                parameter += torch.randn(parameter.shape, generator=generator) * 0.1


def _logits(trainer: Any, ids: torch.Tensor) -> torch.Tensor:
    model = trainer.models[0].eval()
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    with torch.no_grad():
        return model(ids, positions, None)[..., : trainer.vocabulary.size].clone()


def import_all(folders: dict[str, str]) -> None:
    """Import Hugging Face folders (in a process of its own: it makes megatron-core run on CPUs)."""
    from pathlib import Path

    from fixedcode_megatron.interop.hf_import import import_folder

    for source, target in folders.items():
        import_folder(Path(source), Path(target))


def convert_without_room(commands: list[list[str]]) -> list[int]:
    """tools/convert_checkpoint.py where no file may grow beyond 20 kB, as if the disk were full."""
    import resource

    from fixedcode_megatron.interop.convert_command import main

    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    return [main(argv) for argv in commands]


def save_and_import(argv: list[str], folders: dict[str, str]) -> None:
    """One checkpoint of random weights, and those of Hugging Face folders."""
    save_random({"": argv}, None)
    import_all(folders)


def evaluate(argv: list[str], home: str) -> int:
    """tools/evaluate_model.py on this rank, with the libraries' own files under `home`."""
    import os

    os.environ |= {"HF_HOME": home, "HF_HUB_OFFLINE": "1"}
    from fixedcode_megatron.evaluation.command import main

    return main(argv)
