"""Reading single tensors of a checkpoint in megatron-core's format torch_dist, at any layout.

No process group is needed and nothing but the tensor asked for is held in memory: the files say
where each rank's pieces of a global tensor lie, and the pieces that overlap with what is wanted are
read and joined.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.training.checkpoint_load import is_weight

LAYERS = "decoder.layers."
"""Keys that begin so belong to tensors [layers, ...] of which each layer is one slice."""


class CheckpointWeights:
    """The weights of one checkpoint folder.

    Parameters
    ----------
    path
        A whole checkpoint, `.../iter_0000010`.

    Raises
    ------
    UserError
        If its metadata are damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = FileSystemReader(path)
        with _damage_as_user_error(path):
            metadata = self._reader.read_metadata()
            self._tensors = {
                key: value
                for key, value in metadata.state_dict_metadata.items()
                if isinstance(value, TensorStorageMetadata) and is_weight(key)
            }
            self._reader.set_up_storage_reader(metadata, is_coordinator=True)

    def __contains__(self, key: object) -> bool:
        return key in self._tensors

    def keys(self) -> list[str]:
        """Keys of all weights, in alphabetical order."""
        return sorted(self._tensors)

    def dtype(self, key: str) -> torch.dtype:
        """Type of the stored elements."""
        return self._tensor(key).properties.dtype

    def read(self, key: str, layer: int | None = None) -> torch.Tensor:
        """The global tensor of `key`, or the slice `[layer]` of its first dimension.

        Raises
        ------
        UserError
            If the checkpoint has no such tensor, or its file is damaged.
        """
        tensor = self._tensor(key)
        offsets, sizes = [0] * len(tensor.size), list(tensor.size)
        if layer is not None:
            offsets[0], sizes[0] = layer, 1
        wanted = ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))
        items = create_read_items_for_chunk_list(key, tensor, [wanted])
        target = torch.empty(sizes, dtype=tensor.properties.dtype)
        assert sum(item.lengths.numel() for item in items) == target.numel(), key
        with _damage_as_user_error(self._path):
            self._reader.read_data(LoadPlan(items), _Pieces(target)).wait()
        return target if layer is None else target[0]

    def _tensor(self, key: str) -> TensorStorageMetadata:
        if key not in self._tensors:
            raise UserError(f"{self._path} holds no {key}")
        return self._tensors[key]


@contextmanager
def _damage_as_user_error(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever unpickling raises
        raise UserError(f"{path} could not be read: {error}") from error


class _Pieces(LoadPlanner):
    """Receives the stored pieces of one tensor."""

    def __init__(self, target: torch.Tensor) -> None:
        self._target = target

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        piece = self._target
        for dim, start in enumerate(read_item.dest_offsets):
            piece = piece.narrow(dim, start, read_item.lengths[dim])
        return piece

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Nothing to do: the piece is a view of the target."""

    def load_bytes(self, read_item: ReadItem, value: object) -> None:
        raise AssertionError("only tensors are asked for")

    def resolve_bytes(self, read_item: ReadItem) -> io.BytesIO:
        raise AssertionError("only tensors are asked for")

    def set_up_planner(self, *_: object, **__: object) -> None:
        """Nothing to prepare."""

    def create_local_plan(self) -> LoadPlan:
        raise AssertionError("the plan is made by the reader")

    create_global_plan = finish_plan = create_local_plan  # type: ignore[assignment]
