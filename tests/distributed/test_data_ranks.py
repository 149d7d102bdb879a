"""Sample indices built by several processes at once: one result, errors on every rank."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch.distributed as dist

from fixedcode_megatron.data.datasets import build_datasets
from fixedcode_megatron.data.indexed import IndexedDatasetWriter
from fixedcode_megatron.errors import UserError
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed


@pytest.fixture
def prefixes(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        with IndexedDatasetWriter(tmp_path / name, np.uint16) as writer:
            for _ in range(200):
                writer.add_document([*rng.integers(1, 100, rng.integers(1, 60)), 0])
            writer.commit()
    return ["0.6", str(tmp_path / "a"), "0.4", str(tmp_path / "b")]


def build(prefixes, caches, *, split="95,5,0", vocab_size=100, one_job=True):
    """Build on this rank with its own cache folder; returns a hash of all samples, or the error."""
    data = SimpleNamespace(
        data_path=prefixes, split=split, data_cache_path=caches[dist.get_rank() % len(caches)]
    )
    tokenizer = SimpleNamespace(vocab_size=100, eod_id=0, unique_identifiers={})
    if not one_job:
        dist.destroy_process_group()
    try:
        train, valid, _ = build_datasets(
            data, tokenizer, seq_length=16, seed=3, samples=(500, 20, 0), vocab_size=vocab_size
        )
    except UserError as error:
        return f"refused: {error}"
    digest = hashlib.sha256()
    for dataset in (train, valid):
        for i in range(len(dataset)):
            digest.update(dataset[i]["tokens"].numpy().tobytes())
    return digest.hexdigest()


def whole_folders(folder):
    names = [p.name for p in folder.iterdir() if not p.name.endswith(".lock")]
    return sorted(name.split("-")[0] for name in names)


def test_two_ranks_with_one_and_with_two_cache_folders_and_two_jobs(tmp_path, prefixes):
    """Case 26."""
    shared, first, second, jobs = (
        str(tmp_path / name) for name in ("shared", "one", "two", "jobs")
    )
    same = run_ranks(2, build, prefixes, [shared])
    apart = run_ranks(2, build, prefixes, [first, second])
    two_jobs = run_ranks(2, build, prefixes, [jobs], one_job=False)
    assert len(set(same + apart + two_jobs)) == 1
    assert not same[0].startswith("refused")
    for folder in ("shared", "one", "two", "jobs"):
        assert whole_folders(tmp_path / folder) == ["train", "valid"]


@pytest.mark.parametrize(
    ("split", "vocab_size", "message"),
    [("99.9,0.1,0", 100, "valid split"), ("95,5,0", 99, "token id 99")],
)
def test_every_rank_hears_of_a_mistake(tmp_path, prefixes, split, vocab_size, message):
    cache = [str(tmp_path / "cache")]
    answers = run_ranks(2, build, prefixes, cache, split=split, vocab_size=vocab_size)
    assert all(answer.startswith("refused") and message in answer for answer in answers)
