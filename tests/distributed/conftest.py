"""A small dataset and a small model that the distributed tests train."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixedcode_megatron.data.indexed import IndexedDatasetWriter
from tests.distributed.cases import run_main
from tests.distributed.ranks import run_ranks

VOCAB_SIZE = 500  # not a power of two: K = 9 and 12 codes stay unused; padded to 512
_MODEL = (
    "--num-layers 4 --hidden-size 72 --num-attention-heads 4 --ffn-hidden-size 96 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --hidden-dropout 0 --attention-dropout 0 "
    "--seq-length 32 --micro-batch-size 2 --global-batch-size 8 --train-iters 20 --lr 4e-3 "
    "--lr-decay-style cosine --lr-warmup-iters 3 --min-lr 1e-4 --weight-decay 0.1 --clip-grad 1.0 "
    "--split 80,20,0 --eval-interval 10 --eval-iters 2 --log-interval 1 --seed 7"
).split()


@pytest.fixture(scope="session")
def data_prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 60 documents whose ids follow a noisy rule, so that a model can learn."""
    prefix = tmp_path_factory.mktemp("data") / "corpus"
    random = np.random.default_rng(3)
    with IndexedDatasetWriter(prefix, np.uint16) as writer:
        for _ in range(60):
            ids = [int(random.integers(1, VOCAB_SIZE))]
            while len(ids) < 150:
                noise = random.random() < 0.2
                step = int(random.integers(1, VOCAB_SIZE)) if noise else (7 * ids[-1] + 3)
                ids.append(step % VOCAB_SIZE)
            writer.add_document([*ids, 0])
        writer.commit()
    return prefix


@dataclass
class Run:
    """What a training run left behind."""

    folder: Path
    status: int

    def rows(self, kind: str = "train") -> list[dict[str, Any]]:
        """The JSON lines of one kind, in order."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [row for row in map(json.loads, lines) if row["kind"] == kind]

    def column(self, name: str, kind: str = "train") -> list[float]:
        """One figure of each of these lines."""
        return [row[name] for row in self.rows(kind)]

    @property
    def losses(self) -> list[float]:
        """Training loss of each iteration."""
        return self.column("lm loss")


Train = Callable[..., Run]


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory, data_prefix: Path) -> Train:
    """`train("--flag value ...", ranks=N)`: run the entry point on N gloo ranks."""

    def start(
        flags: str | Sequence[str] = "", *, ranks: int = 1, folder: Path | None = None
    ) -> Run:
        folder = folder or tmp_path_factory.mktemp("run")
        base = [*_MODEL, "--vocab-size", str(VOCAB_SIZE), "--data-path", str(data_prefix)]
        extra = flags.split() if isinstance(flags, str) else list(flags)
        statuses = run_ranks(
            ranks, run_main, [*base, "--run-dir", str(folder), *extra], output=folder
        )
        assert len(set(statuses)) == 1, statuses
        return Run(folder, statuses[0])

    return start


@pytest.fixture(scope="session")
def reference(train: Train) -> Callable[[str], Run]:
    """The one-process FP32 run of an interface, computed once a session."""
    runs: dict[str, Run] = {}

    def get(interface: str) -> Run:
        if interface not in runs:
            runs[interface] = train(f"--input-interface {interface}")
        return runs[interface]

    return get


@pytest.fixture(scope="session")
def base_flags(data_prefix: Path) -> list[str]:
    """The flags that `train` starts from."""
    return [*_MODEL, "--vocab-size", str(VOCAB_SIZE), "--data-path", str(data_prefix)]
