"""Hugging Face folders on disk: sharded safetensors, written atomically and read lazily."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fixedcode_megatron.data.files import temporary_beside
from fixedcode_megatron.errors import UserError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
RECORD = "fixedcode_megatron.json"
"""What an import needs beyond the tensors; names no path of the machine that trained the model."""


@contextmanager
def atomically(target: Path) -> Iterator[Path]:
    """A folder beside `target` that takes its name when the block ends well.

    Raises
    ------
    UserError
        If `target` exists.
    """
    if target.exists():
        raise UserError(f"--save {target} exists already: name a new folder")
    partial = temporary_beside(target)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a Hugging Face folder.

    Raises
    ------
    UserError
        If the file is missing or damaged.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist: --load names a Hugging Face folder") from error
    except ValueError as error:  # no JSON, or no UTF-8
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return content


def write_json(path: Path, content: Any) -> None:
    """Write a small JSON file."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_tensors(
    folder: Path, tensors: Iterable[tuple[str, torch.Tensor]], max_shard_bytes: int
) -> int:
    """Write tensors into shards of at most that size (or one tensor); returns how many elements.

    One shard is held in memory at a time.
    """
    shards: list[list[str]] = []
    waiting: dict[str, torch.Tensor] = {}
    total = elements = held = 0  # held: bytes in `waiting`

    def flush() -> None:
        _save(waiting, folder / f"shard-{len(shards)}")
        shards.append(list(waiting))
        waiting.clear()

    for name, tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if waiting and held + size > max_shard_bytes:
            flush()
            held = 0
        waiting[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
        total, held, elements = total + size, held + size, elements + tensor.numel()
    flush()
    _name_shards(folder, shards, total)
    return elements


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path} could not be written: {error}") from error
    path.chmod(0o644)  # it makes files that nobody else can read


def _name_shards(folder: Path, shards: list[list[str]], total: int) -> None:
    count = len(shards)
    names = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    names = [SINGLE] if count == 1 else names
    for number, name in enumerate(names):
        (folder / f"shard-{number}").rename(folder / name)
    if count > 1:
        places = {t: name for name, held in zip(names, shards, strict=True) for t in held}
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": places})


class FolderTensors:
    """The tensors of a Hugging Face folder, each read when it is asked for.

    Raises
    ------
    UserError
        If the folder holds no safetensors, or damaged ones.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        files = [_opened(folder / name) for name in _weight_files(folder)]
        self._places = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, which is not read."""
        return tuple(self._places[name].get_slice(name).get_shape())

    def read(self, name: str) -> torch.Tensor:
        """One tensor.

        Raises
        ------
        UserError
            If there is none of that name.
        """
        if name not in self._places:
            raise UserError(f"{self._folder} holds no tensor {name}")
        return self._places[name].get_tensor(name)


def _weight_files(folder: Path) -> list[str]:
    index = folder / INDEX
    if index.is_file():
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(n, str) for n in places.values()):
            raise UserError(f"{index} is damaged: it has no weight_map from tensors to files")
        return sorted(set(places.values()))
    if (folder / SINGLE).is_file():
        return [SINGLE]
    raise UserError(f"{folder} holds no {SINGLE} and no {INDEX}")


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, "pt")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is missing or damaged: {error}") from error
