"""Sample indices built by several processes at once: one result, errors on every rank."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from fixedcode_megatron.data.indexed import IndexedDatasetWriter

SCRIPT = """
import hashlib, json, os, sys, time
from datetime import timedelta
from types import SimpleNamespace
import torch, torch.distributed as dist
from fixedcode_megatron.data.datasets import build_datasets
from fixedcode_megatron.errors import UserError

prefixes, split, vocab_size, cache, store = json.loads(sys.argv[1])
rank = int(os.environ.get("RANK", 0))
if store:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2,
                            timeout=timedelta(seconds=60))
data = SimpleNamespace(data_path=prefixes, split=split, data_cache_path=cache[rank])
tokenizer = SimpleNamespace(vocab_size=100, eod_id=0, unique_identifiers={})
try:
    train, valid, _ = build_datasets(data, tokenizer, seq_length=16, seed=3, samples=(500, 20, 0),
                                     vocab_size=vocab_size)
except UserError as error:
    print("refused:", error)
    sys.exit(3)
digest = hashlib.sha256()
for dataset in (train, valid):
    for i in range(len(dataset)):
        digest.update(dataset[i]["tokens"].numpy().tobytes())
print(digest.hexdigest(), len(train), len(valid))
if store:
    dist.destroy_process_group()
"""


@pytest.fixture
def prefixes(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        with IndexedDatasetWriter(tmp_path / name, np.uint16) as writer:
            for _ in range(200):
                writer.add_document([*rng.integers(1, 100, rng.integers(1, 60)), 0])
            writer.commit()
    return ["0.6", str(tmp_path / "a"), "0.4", str(tmp_path / "b")]


def run(arguments, count=2):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(arguments)],
            env={**os.environ, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=180)[0].strip() for process in processes]
    return [process.returncode for process in processes], outputs


def whole_folders(folder):
    names = [p.name for p in folder.iterdir() if not p.name.endswith(".lock")]
    return sorted(name.split("-")[0] for name in names)


@pytest.mark.distributed
def test_two_ranks_with_one_and_with_two_cache_folders(tmp_path, prefixes):
    shared, first, second = (str(tmp_path / name) for name in ("shared", "one", "two"))
    codes, same = run([prefixes, "95,5,0", 100, [shared, shared], str(tmp_path / "store1")])
    assert codes == [0, 0] and same[0] == same[1]
    codes, apart = run([prefixes, "95,5,0", 100, [first, second], str(tmp_path / "store2")])
    assert codes == [0, 0] and apart[0] == apart[1] == same[0]
    for folder in ("shared", "one", "two"):
        assert whole_folders(tmp_path / folder) == ["train", "valid"]


@pytest.mark.distributed
def test_two_jobs_at_once(tmp_path, prefixes):
    cache = str(tmp_path / "cache")
    codes, outputs = run([prefixes, "95,5,0", 100, [cache, cache], None])
    assert codes == [0, 0] and outputs[0] == outputs[1]
    assert whole_folders(tmp_path / "cache") == ["train", "valid"]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("split", "vocab_size", "message"),
    [("99.9,0.1,0", 100, "valid split"), ("95,5,0", 99, "token id 99")],
)
def test_every_rank_hears_of_a_mistake(tmp_path, prefixes, split, vocab_size, message):
    cache = [str(tmp_path / "cache")] * 2
    codes, outputs = run([prefixes, split, vocab_size, cache, str(tmp_path / "store")])
    assert codes == [3, 3]
    assert all(message in output for output in outputs)
