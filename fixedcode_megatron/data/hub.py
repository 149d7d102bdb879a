"""Hugging Face datasets, by name or as a folder that `save_to_disk` wrote."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixedcode_megatron.data.sources import Item
from fixedcode_megatron.data.tables import Rows
from fixedcode_megatron.errors import UserError

_ROWS = 256


@dataclass(frozen=True)
class HubDataset:
    """What to load.

    Attributes
    ----------
    name
        Name on the hub, or a local folder.
    config, split
        As `datasets.load_dataset` takes them.
    streaming
        Read while downloading, without a copy on disk.
    """

    name: str
    config: str | None = None
    split: str = "train"
    streaming: bool = False

    def open(self) -> Any:
        """Load the dataset.

        Raises
        ------
        UserError
            If the library is missing, or it cannot load the dataset.
        """
        try:
            import datasets
        except ImportError as error:
            raise UserError(
                "--hf-dataset needs the datasets library: pip install datasets"
            ) from error
        try:
            if (Path(self.name) / "state.json").is_file():
                return datasets.load_from_disk(self.name)
            if (Path(self.name) / "dataset_dict.json").is_file():
                return datasets.load_from_disk(self.name)[self.split]
            return datasets.load_dataset(
                self.name, self.config, split=self.split, streaming=self.streaming
            )
        except Exception as error:  # whatever a loader or the network raises
            raise UserError(f"--hf-dataset {self.name}: cannot be loaded ({error})") from error

    def describe(self) -> str:
        """Name, configuration and split, for messages."""
        return ":".join(filter(None, (self.name, self.config, self.split)))

    def items(
        self, dataset: Any, start: int, shard: int, shards: int, keys: Sequence[str]
    ) -> Iterator[Item]:
        """Rows of this shard from `start` on, a number of rows within the shard.

        A dataset of known length is cut into `shards` runs of rows; of a stream every
        `shards`-th row is taken.
        """
        names = getattr(dataset, "column_names", None)
        if names:
            dataset = dataset.select_columns([key for key in keys if key in names] or names[:1])
        if hasattr(dataset, "__len__"):
            low, high = (len(dataset) * i // shards for i in (shard, shard + 1))
            batches = _column_batches(dataset, low + start, high)
        else:
            begin = shard + start * shards
            rows = itertools.islice(dataset.skip(begin) if begin else dataset, 0, None, shards)
            batches = iter(lambda: list(itertools.islice(rows, _ROWS)), [])
        end = start
        for batch in batches:
            end += len(batch)
            size = sum(len(v) for row in batch for v in row.values() if isinstance(v, str))
            yield Item(0, self.describe(), Rows(batch), end, size)


def _column_batches(dataset: Any, begin: int, end: int) -> Iterator[list[dict[str, Any]]]:
    """Rows `begin` to `end`, a few hundred at a time (a slice of a dataset is a dict of lists)."""
    for first in range(begin, end, _ROWS):
        columns = dataset[first : min(first + _ROWS, end)]
        yield [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
