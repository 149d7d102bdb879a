"""A checkpoint of ours as something to convert: its common state, architecture and weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.interop.architecture import Architecture, architecture_of
from fixedcode_megatron.interop.pieces import HEAD, LOWDIM, TABLE, Form, cut
from fixedcode_megatron.interop.weights import CheckpointWeights
from fixedcode_megatron.training.checkpoint_choice import find_checkpoint
from fixedcode_megatron.training.checkpoint_load import read_common_state


@dataclass(frozen=True)
class Source:
    """An opened checkpoint."""

    path: Path
    common: dict[str, Any]
    architecture: Architecture
    weights: CheckpointWeights

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.weights.dtype("decoder.final_layernorm.weight")


def open_checkpoint(root: Path, step: int | None = None) -> Source:
    """Open the newest checkpoint under `root`, that of iteration `step`, or `root` itself.

    Raises
    ------
    UserError
        If there is none, it is damaged, or of a model that cannot be converted.
    """
    path = find_checkpoint(root, step)
    if path is None:
        raise UserError(
            f"--load {root} holds no checkpoint: name a checkpoint or a folder of checkpoints"
            " (tools/generate.py and evaluate_model.py take Hugging Face folders, too)"
        )
    common = read_common_state(path)
    if "token_code" not in common:
        raise UserError(
            f"{path} was not written by fixedcode-megatron: start a run with its weights "
            "(--pretrained-checkpoint) and convert that run's checkpoint"
        )
    if step not in (None, common["iteration"]):  # `root` is a checkpoint itself
        raise UserError(f"--ckpt-step {step}: --load {root} is of iteration {common['iteration']}")
    return Source(path, common, architecture_of(common), CheckpointWeights(path))


def exported_tensors(source: Source, form: Form) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and value of each tensor of the form, one after the other.

    Raises
    ------
    UserError
        If the checkpoint holds a weight that the form has no place for.
    """
    a, weights = source.architecture, source.weights
    used = {piece.key for piece in form.pieces} | ({TABLE, LOWDIM} if form.table else set())
    if left := sorted(key for key in weights.keys() if key not in used):  # noqa: SIM118
        raise UserError(f"{source.path} holds weights that cannot be exported: {', '.join(left)}")
    if form.table is not None:
        yield form.table, input_table(source)
    for piece in form.pieces:
        tensor = weights.read(piece.key, piece.layer)
        if piece.key in (HEAD, TABLE):
            tensor = tensor[: a.vocab_size]  # what Megatron pads them to is nobody's token
        yield from zip(piece.names, cut(piece, tensor, a), strict=True)
    for name, size in form.zeros.items():
        yield name, torch.zeros(size, dtype=source.dtype)


def input_table(source: Source) -> torch.Tensor:
    """The input vectors of all ids, [V, hidden_size], learned or tiled from the code."""
    a = source.architecture
    if a.interface == "learned":
        return source.weights.read(TABLE)[: a.vocab_size]
    assert a.code is not None
    if a.interface == "lowdim":
        return source.weights.read(LOWDIM)[:, a.code.lift_index(a.hidden_size)]
    return a.code.table(a.hidden_size, source.dtype)
