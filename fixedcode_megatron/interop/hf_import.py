"""From a Hugging Face folder to a checkpoint of ours, for a new run to start with."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from torch.distributed.checkpoint.api import CheckpointException

from fixedcode_megatron import cpu_platform
from fixedcode_megatron.codes import TokenCode
from fixedcode_megatron.config.tree import default_config
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.interop.architecture import Architecture, architecture_of
from fixedcode_megatron.interop.forms import form_of
from fixedcode_megatron.interop.hf_folder import RECORD, FolderTensors, read_json
from fixedcode_megatron.interop.llama_config import settings_of_llama
from fixedcode_megatron.interop.pieces import (
    HEAD,
    LOWDIM,
    TABLE,
    Piece,
    join,
    tensor_shapes,
)
from fixedcode_megatron.model.gpt import Vocabulary
from fixedcode_megatron.training import checkpoint_files, checkpoint_integrity, checkpoint_writer
from fixedcode_megatron.training.checkpoint_state import MEGATRON_VERSION, versions
from fixedcode_megatron.training.state import TrainState

_RECORDED = (
    "form",
    "config",
    "input_interface",
    "vocab_size",
    "token_code",
    "tokenizer_fingerprint",
)
_ROWS = 65536  # rows of an input table that are compared with the code at a time

logger = logging.getLogger(__name__)


def import_folder(folder: Path, save: Path) -> None:
    """Write the model in `folder` as iteration 0 under `save`.

    Raises
    ------
    UserError
        If the model is neither an export of ours nor a LlamaForCausalLM that we can train, tensors
        are missing, left over or of the wrong shape, a file is damaged, or `save` is not empty.
    """
    if save.exists() and any(save.iterdir()):
        raise UserError(f"--save {save} is not empty: name a new folder")
    found = _settings(folder)
    common = common_state(found, folder)
    a = architecture_of(common)
    tensors, form = FolderTensors(folder), form_of(found["form"], a)
    _check_tensors(folder, tensors, tensor_shapes(form, a))
    state = {
        str(number): _sharded(piece, [tensors.read(name) for name in piece.names], a, common)
        for number, piece in enumerate(form.pieces)
    }
    for name in form.zeros:
        if tensors.read(name).any():
            raise UserError(f"{folder}: {name} is not 0, and our model has no such bias")
    if form.table is not None:
        table = trained_table(folder, tensors.read(form.table), a)
        if table is not None:
            state["table"] = _sharded(table[0], [table[1]], a, common)
    _save(state, common, save)
    logger.info("wrote %s: start a run with it by --pretrained-checkpoint", save)


def _settings(folder: Path) -> dict[str, Any]:
    """What an export of ours records about itself, or the same of a foreign model."""
    path = folder / RECORD
    if not path.is_file():
        return settings_of_llama(read_json(folder / "config.json"))
    found = read_json(path)
    if absent := [name for name in _RECORDED if name not in found]:
        raise UserError(f"{path} is damaged: it lacks {', '.join(absent)}")
    return found


def common_state(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The common state of a checkpoint of iteration 0 that was imported from `folder`."""
    config = default_config().to_dict() | found["config"]
    if (folder / "tokenizer.json").is_file():
        config |= {
            "tokenizer_type": "HuggingFaceTokenizer",
            "tokenizer_model": str(folder.resolve()),
        }
    return {
        "checkpoint_version": MEGATRON_VERSION,
        "iteration": 0,
        "train_state": TrainState().to_dict(),
        "optimizer_absent": True,
        "rng_absent": True,
        "layout": {"tensor": 1, "pipeline": 1, "data": 1},
        "config": config,
        "input_interface": found["input_interface"],
        "vocab_size": found["vocab_size"],
        "token_code": found["token_code"],
        "tokenizer_fingerprint": found["tokenizer_fingerprint"],
        "versions": versions(),
    }


def _check_tensors(
    folder: Path, tensors: FolderTensors, shapes: dict[str, tuple[int, ...]]
) -> None:
    """Refuse a folder whose tensors are not those, of those shapes."""
    wanted, held = set(shapes), tensors.names()
    for names, what in ((wanted - held, "lacks"), (held - wanted, "holds")):
        if names:
            raise UserError(
                f"{folder} does not fit its config.json: it {what} {', '.join(sorted(names)[:5])}"
            )
    for name, shape in shapes.items():
        if tensors.shape(name) != shape:
            raise UserError(
                f"{folder} does not fit its config.json: {name} is {list(tensors.shape(name))}, "
                f"by the configuration {list(shape)}"
            )


def _sharded(
    piece: Piece, tensors: list[torch.Tensor], a: Architecture, common: dict[str, Any]
) -> ShardedTensor:
    """One Megatron tensor as megatron-core saves it."""
    tensor = join(piece, tensors, a)
    if piece.key in (HEAD, TABLE):
        divisor = common["config"]["make_vocab_size_divisible_by"]
        rows = Vocabulary.padded(a.vocab_size, divisor, 1).padded_size
        tensor = torch.nn.functional.pad(tensor, (0, 0, 0, rows - len(tensor)))
    tensor = tensor.contiguous()
    if piece.layer is None:
        return ShardedTensor.from_rank_offsets(piece.key, tensor)
    place = (0, piece.layer, a.num_layers)
    return ShardedTensor.from_rank_offsets(piece.key, tensor, place, prepend_axis_num=1)


def trained_table(
    folder: Path, table: torch.Tensor, a: Architecture
) -> tuple[Piece, torch.Tensor] | None:
    """The trained tensor behind a plain form's input table; None for a fixed code.

    Raises
    ------
    UserError
        If the table is not what the code computes.
    """
    if a.interface == "learned":
        return Piece(TABLE, None, ("",)), table
    assert a.code is not None
    columns = a.code.lift_index(a.hidden_size)
    if a.interface == "lowdim":
        first = torch.tensor([int((columns == k).nonzero()[0]) for k in range(a.code.num_bits)])
        if torch.equal(table, table[:, first][:, columns]):
            return Piece(LOWDIM, None, ("",)), table[:, first]
    elif _is_of_code(table, a.code):
        return None
    raise UserError(
        f"{folder}: the input table is no longer what --input-interface {a.interface} makes; a "
        "table that was trained on is --input-interface learned"
    )


def _is_of_code(table: torch.Tensor, code: TokenCode) -> bool:
    for start in range(0, len(table), _ROWS):
        rows = table[start : start + _ROWS]
        ids = torch.arange(start, start + len(rows))
        if not torch.equal(rows, code.embed(ids, rows.shape[1], rows.dtype)):
            return False
    return len(table) == code.vocab_size


def _save(state: dict[str, Any], common: dict[str, Any], save: Path) -> None:
    """Write a checkpoint from one process, which is a group of its own for as long.

    Of one that cannot be written nothing stays behind.
    """
    cpu_platform.install()
    checkpoint_writer.install()
    alone = not dist.is_initialized()
    if alone:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        partial = checkpoint_files.prepare(save, 0)
        dist_checkpointing.save(state | common, str(partial))
        checkpoint_integrity.record(partial, checksums=False)
        checkpoint_files.publish(save, 0)
    except BaseException as error:
        shutil.rmtree(save, ignore_errors=True)  # it was empty, or not there
        if isinstance(error, CheckpointException):
            causes = "; ".join(str(cause) for cause, _ in error.failures.values())
            raise OSError(f"--save {save} could not be written: {causes}") from error
        raise
    finally:
        if alone:
            dist.destroy_process_group()
