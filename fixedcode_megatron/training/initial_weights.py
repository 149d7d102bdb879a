"""What a run started with: parameters and a checksum of each part's weights, at any layout.

Two runs whose checksums of a part are equal started with the same weights there, whatever ranks
they were spread over: every element counts once, with a weight that follows from its place in the
whole tensor.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.mapping import ShardedTensor, is_main_replica

from fixedcode_megatron.model.initialization import sharded_tensors
from fixedcode_megatron.splitmix import GAMMA, mix64
from fixedcode_megatron.training.checkpoint_files import write_atomically
from fixedcode_megatron.training.gradient_norms import PARTS, part_of

if TYPE_CHECKING:
    from fixedcode_megatron.training.trainer import Trainer

WEIGHTS_FILE = "initial_weights.json"
_CHUNK = 1 << 22  # elements that are widened to int64 at a time


def record_initial_weights(trainer: Trainer, run_dir: Path) -> None:
    """Write `initial_weights.json`; every rank must call it, before the first iteration.

    It holds ``{part: {"parameters": n, "checksum": "16 hexadecimal digits"}}`` for input, layers
    and head. Parameters are the trainable elements, the head's padding included.
    """
    totals = weight_sums([model.module for model in trainer.models], trainer.runtime.device)
    dist.all_reduce(totals)
    if trainer.is_logging_rank:
        content = {
            part: {"parameters": count, "checksum": f"{checksum % 2**64:016x}"}
            for part, (count, checksum) in zip(PARTS, totals.tolist(), strict=True)
        }
        write_atomically(run_dir / WEIGHTS_FILE, json.dumps(content) + "\n")


def read_initial_weights(run_dir: Path) -> dict[str, dict[str, Any]] | None:
    """What `record_initial_weights` wrote; None where a run has no such file."""
    path = run_dir / WEIGHTS_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


@torch.no_grad()
def weight_sums(models: list[Any], device: torch.device) -> torch.Tensor:
    """Elements and checksum of each part that this rank is the owner of, int64 [3, 2]."""
    totals = torch.zeros(len(PARTS), 2, dtype=torch.int64, device=device)
    for model in models:
        for tensor in sharded_tensors(model):
            data = tensor.data
            if (
                data is None
                or not data.is_floating_point()
                or not is_main_replica(tensor.replica_id)
            ):
                continue
            row = totals[PARTS.index(part_of(tensor.key))]
            row[0] += data.numel()
            for places, values in _chunks(tensor):
                row[1] += (_coefficients(places, tensor.key) * values).sum()
    return totals


def _chunks(tensor: ShardedTensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Place in the whole tensor and bit pattern as FP32 of each element, int64 [n] both."""
    assert tensor.data is not None
    sizes, offsets = tensor.global_shape, tensor.global_offset
    axes = tensor.prepend_axis_num  # the layer axis of stacked layers, which the data lacks
    shape = (*(1 for _ in range(axes)), *tensor.local_shape)
    flat = tensor.data.reshape(-1)
    for start in range(0, flat.numel(), _CHUNK):
        values = flat[start : start + _CHUNK].float().view(torch.int32).to(torch.int64)
        rest = torch.arange(start, start + values.numel(), device=flat.device)
        places, stride = torch.zeros_like(rest), 1
        for size, offset, length in zip(
            reversed(sizes), reversed(offsets), reversed(shape), strict=True
        ):
            places += (rest % length + offset) * stride
            rest, stride = rest // length, stride * size
        yield places, values


def _coefficients(places: torch.Tensor, key: str) -> torch.Tensor:
    """An odd 64-bit number for each place of a tensor; int64 arithmetic wraps."""
    start = mix64(zlib.crc32(key.encode()))
    mixed = places * _signed(GAMMA) + _signed(start)
    mixed = (mixed ^ (mixed >> 29)) * _signed(mix64(GAMMA))
    return mixed ^ (mixed >> 32) | 1


def _signed(value: int) -> int:
    return value - 2**64 if value >> 63 else value
