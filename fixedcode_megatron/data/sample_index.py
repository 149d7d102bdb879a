"""Sample indices: built by megatron-core's code, kept where they cannot go stale or half-written.

A split's indices are one folder, named by a hash of everything they depend on: sizes and times of
the data files, sequence length, seed, documents, weights, samples, tokenizer, megatron-core's
version. The folder appears by rename and lists its files' sizes; one that is not whole is made
again. Imports megatron-core.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from megatron.core import __version__ as megatron_version
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split

from fixedcode_megatron.data.files import exclusive_lock, write_text_whole
from fixedcode_megatron.data.gpt_dataset import TokenDataset
from fixedcode_megatron.data.indexed import bin_path, idx_path
from fixedcode_megatron.data.plans import Part, SplitPlan
from fixedcode_megatron.errors import UserError

logger = logging.getLogger(__name__)

_FORMAT = 1
_SURPLUS = 0.005  # megatron-core's default margin of samples per blended dataset
_MANIFEST = "manifest.json"
_IN_MEMORY = ""  # megatron-core builds indices on any rank and writes nothing


@dataclass(frozen=True)
class _TokenizerFacts:
    """What megatron-core's datasets ask a tokenizer for; it has no pad, so no id is rewritten."""

    vocab_size: int
    eod: int
    unique_identifiers: dict


class SampleIndex:
    """Builds and loads the datasets of one configuration."""

    def __init__(self, data: Any, tokenizer: Any, *, seq_length: int, seed: int) -> None:
        self._data = data
        self._facts = _TokenizerFacts(
            vocab_size=tokenizer.vocab_size,
            eod=-2 if tokenizer.eod_id is None else tokenizer.eod_id,
            unique_identifiers=dict(tokenizer.unique_identifiers),
        )
        self._seq_length = seq_length
        self._seed = seed

    def ensure(self, plan: SplitPlan) -> Path:
        """Build a split's indices if no whole ones are there; returns their folder.

        Safe for any number of processes and jobs at once.
        """
        folder = self._folder(plan)
        if _is_whole(folder):
            return folder
        try:
            with exclusive_lock(folder.with_name(f".{folder.name}.lock")):
                if not _is_whole(folder):
                    self._replace(folder, plan)
        except OSError as error:
            if not _is_whole(folder):  # another machine may have been faster
                raise UserError(
                    f"the sample index cannot be written to {folder.parent} ({error}): name a "
                    "writable folder with --data-cache-path"
                ) from error
        return folder

    def _replace(self, folder: Path, plan: SplitPlan) -> None:
        """Build into a folder beside `folder` and rename it."""
        if folder.exists():
            logger.warning("%s is damaged: the sample index is built again", folder)
        work = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
        shutil.rmtree(work, ignore_errors=True)
        try:
            work.mkdir(parents=True)
            self._build_into(work, plan)
            # Whoever still reads the damaged folder keeps its files open.
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(work, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def load(self, plan: SplitPlan) -> Any:
        """The dataset of a split, its indices memory-mapped from the folder of `ensure`."""
        dataset, _ = self._assemble(plan, str(self._folder(plan)))
        return dataset

    def _build_into(self, work: Path, plan: SplitPlan) -> None:
        logger.info("building the sample index of the %s split", plan.name)
        with _quiet("megatron.core.datasets"):  # it warns that nothing is saved: we do that
            dataset, members = self._assemble(plan, _IN_MEMORY)
        arrays: dict[str, np.ndarray] = {}
        descriptions = {}
        for member in members:
            arrays.update(member.index_arrays())
            descriptions[_base(member)] = member.unique_description
        if isinstance(dataset, BlendedDataset):
            base = _base(dataset)
            arrays[f"{base}-dataset_index.npy"] = dataset.dataset_index
            arrays[f"{base}-dataset_sample_index.npy"] = dataset.dataset_sample_index
            descriptions[base] = dataset.unique_description
        for name, array in arrays.items():
            np.save(work / name, array, allow_pickle=False)
        for base, text in descriptions.items():
            (work / f"{base}-description.txt").write_text(text, encoding="utf-8")
        sizes = {path.name: path.stat().st_size for path in work.iterdir()}
        write_text_whole(work / _MANIFEST, json.dumps(sizes, indent=1))

    def _assemble(self, plan: SplitPlan, cache: str) -> tuple[Any, list[TokenDataset]]:
        """Build (`cache` empty) or load the datasets of a split as megatron-core's builder does."""
        config = self._config(plan, cache)
        if len(plan.parts) == 1:
            dataset = self._token_dataset(plan.parts[0], plan, plan.samples, config)
            return dataset, [dataset]
        if plan.weights is None:  # each dataset once, mixed in proportion
            members = [self._token_dataset(part, plan, None, config) for part in plan.parts]
            counts = [len(member) for member in members]
            size = None if plan.samples is None else min(plan.samples, sum(counts))
            return BlendedDataset(members, counts, size, config), members
        assert plan.samples is not None
        targets = [math.ceil(plan.samples * weight) for weight in plan.weights]
        members = [
            self._token_dataset(part, plan, math.ceil(target * (1 + _SURPLUS)), config)
            for part, target in zip(plan.parts, targets, strict=True)
        ]
        return BlendedDataset(members, list(plan.weights), sum(targets), config), members

    def _token_dataset(
        self, part: Part, plan: SplitPlan, samples: int | None, config: GPTDatasetConfig
    ) -> TokenDataset:
        tokens = IndexedDataset(part.prefix, multimodal=False, mmap=config.mmap_bin_files)
        # Only building looks at them, and each rank would hold 4 bytes per document.
        end = part.first if config.path_to_cache else part.end
        documents = np.arange(part.first, end, dtype=np.int32)
        return TokenDataset(tokens, part.prefix, documents, samples, Split[plan.name], config)

    def _config(self, plan: SplitPlan, cache: str) -> GPTDatasetConfig:
        data = self._data
        return GPTDatasetConfig(
            random_seed=self._seed,
            sequence_length=self._seq_length,
            blend=([part.prefix for part in plan.parts], None),
            split="1,1,1",  # not used: the plan says which documents
            path_to_cache=cache,
            mmap_bin_files=getattr(data, "mmap_bin_files", True),
            tokenizer=self._facts,
            reset_position_ids=bool(getattr(data, "reset_position_ids", False)),
            reset_attention_mask=bool(getattr(data, "reset_attention_mask", False)),
            eod_mask_loss=bool(getattr(data, "eod_mask_loss", False)),
            create_attention_mask=False,
        )

    def _folder(self, plan: SplitPlan) -> Path:
        key = {
            "format": _FORMAT,
            "megatron": megatron_version,
            "seq_length": self._seq_length,
            "seed": self._seed,
            "tokenizer": self._facts.unique_identifiers,
            "samples": plan.samples,
            "weights": plan.weights,
            "parts": [
                [part.prefix, part.first, part.end, *_identity(part.prefix)] for part in plan.parts
            ],
        }
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]
        return self._root(plan) / f"{plan.name}-{digest}"

    def _root(self, plan: SplitPlan) -> Path:
        """The cache folder: as told, else beside the data, else where temporary files go."""
        told = getattr(self._data, "data_cache_path", None)
        if told:
            return Path(told)
        beside = Path(plan.parts[0].prefix).absolute().parent
        if os.access(beside, os.W_OK):
            return beside / "sample_index"
        return Path(tempfile.gettempdir()) / f"fixedcode_sample_index_{os.getuid()}"


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Hold back warnings of a package's loggers."""
    known = logging.getLogger(name).manager.loggerDict
    loggers = [logging.getLogger(each) for each in known if each.startswith(name)]
    levels = [each.level for each in loggers]
    try:
        for each in loggers:
            each.setLevel(logging.ERROR)
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


def _base(dataset: Any) -> str:
    split = dataset.split if isinstance(dataset, BlendedDataset) else dataset.index_split
    return f"{dataset.unique_description_hash}-{type(dataset).__name__}-{split.name}"


def _identity(prefix: str) -> list[int]:
    """Sizes and modification times of a dataset's files."""
    stats = [path(prefix).stat() for path in (bin_path, idx_path)]
    return [number for stat in stats for number in (stat.st_size, stat.st_mtime_ns)]


def _is_whole(folder: Path) -> bool:
    """Whether every file that the folder's manifest lists is there with its size."""
    try:
        sizes = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False
