"""Memory of the data tools: constant, or a few bytes for each document."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from fixedcode_megatron.data.indexed import IndexedDatasetReader, IndexedDatasetWriter

# Highest memory since the program began. File pages that were mapped count, read ones do not.
PEAK = """
import json, sys
def peak():
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
"""
MERGE = """
from fixedcode_megatron.data.merge import merge
before = peak()
merge(sys.argv[2:], sys.argv[1])
print(peak() - before)
"""
WRITE = """
import numpy as np
from fixedcode_megatron.data.indexed_writer import IndexedDatasetWriter
documents, block = int(sys.argv[2]), 1 << 16
ones = np.ones(block, np.uint16), np.ones(block, np.int64)
with IndexedDatasetWriter(sys.argv[1], np.uint16) as writer:
    writer.add_documents(*ones)
    before = peak()
    while writer.num_documents + block <= documents:
        writer.add_documents(*ones)
    rest = documents - writer.num_documents
    writer.add_documents(ones[0][:rest], ones[1][:rest])
    writer.commit()
print(peak() - before)
"""
BUILD = """
import logging, threading, time, warnings
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
from types import SimpleNamespace
import fixedcode_megatron.data.sample_index
from fixedcode_megatron.data.datasets import build_datasets
def own():
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
before = highest = own()
done = False
def watch():
    global highest
    while not done:
        highest = max(highest, own())
        time.sleep(0.005)
watcher = threading.Thread(target=watch)
watcher.start()
tokenizer = SimpleNamespace(vocab_size=2, eod_id=0, unique_identifiers={})
data = SimpleNamespace(data_path=[sys.argv[1]], split="100,0,0")
samples = (int(sys.argv[2]) - 1) // 2048
build_datasets(data, tokenizer, seq_length=2048, seed=1, samples=(samples, 0, 0))
done = True
watcher.join()
print(highest - before)
"""


def run(code, *arguments):
    """What the program prints last: extra bytes."""
    command = [sys.executable, "-c", PEAK + code, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def test_merging_200_shards_takes_no_more_memory_than_2(tmp_path):
    """Case 13."""
    lengths = np.random.default_rng(0).integers(1, 20, 20_000)
    ids = np.arange(lengths.sum()) % 50_000
    with IndexedDatasetWriter(tmp_path / "shard", np.uint16) as writer:
        writer.add_documents(ids, lengths)
        writer.commit()
    shards = [tmp_path / f"shard_{number}" for number in range(200)]
    for shard in shards:
        for suffix in (".bin", ".idx"):
            os.link(tmp_path / f"shard{suffix}", f"{shard}{suffix}")
    two, all_of_them = (run(MERGE, tmp_path / f"m{n}", *shards[:n]) for n in (2, 200))
    assert all_of_them < two + 1_000_000, (two, all_of_them)
    merged = IndexedDatasetReader(tmp_path / "m200")
    assert merged.num_documents == 200 * 20_000
    assert np.array_equal(merged.sequence_lengths, np.tile(lengths, 200))
    assert np.array_equal(merged.document_indices, np.arange(200 * 20_000 + 1))
    assert np.array_equal(merged.tokens.reshape(200, -1)[[0, 99, 199]], [ids] * 3)


@pytest.mark.parametrize("documents", [1_000_000, pytest.param(20_000_000, marks=pytest.mark.slow)])
def test_one_token_documents(tmp_path, documents):
    """Case 13: Writing takes 12 bytes a document and the array's slack, merging nothing."""
    prefix = tmp_path / "d"
    allowance = 6_000_000  # blocks
    assert run(WRITE, prefix, documents) <= 16 * documents + allowance
    assert IndexedDatasetReader(prefix).num_documents == documents
    assert run(MERGE, tmp_path / "m", prefix, prefix) <= 60_000_000  # blocks, whatever the size
    assert IndexedDatasetReader(tmp_path / "m").num_documents == 2 * documents


@pytest.mark.slow
def test_sample_index_of_one_token_documents(tmp_path):
    documents = 20_000_000
    run(WRITE, tmp_path / "d", documents)
    extra = run(BUILD, tmp_path / "d", documents)
    assert extra <= 32 * documents, extra / documents
