#!/usr/bin/env python3
"""Rates of merging, verifying, measuring and splitting, beside megatron-core's way to merge.

The data are synthetic: log-normal lengths of 1,000 tokens on average, random uint16 ids, so that
nothing compresses. Each rate is that of one pass over files that the page cache may hold; memory is
the process's own (anonymous) peak above that at the start.

    python benchmarks/dataset_tools.py --tokens 2e8
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
from sample_index import PeakMemory, device

from fixedcode_megatron.data.indexed import IndexedDatasetReader, IndexedDatasetWriter
from fixedcode_megatron.data.inspection import count_lengths
from fixedcode_megatron.data.merge import merge
from fixedcode_megatron.data.split import split
from fixedcode_megatron.data.verify import verify

_SHARDS = 8


def write_shards(folder: Path, tokens: int) -> list[str]:
    """Shards of together about `tokens` tokens."""
    rng = np.random.default_rng(0)
    prefixes = []
    for number in range(_SHARDS):
        prefix = str(folder / f"shard_{number}")
        with IndexedDatasetWriter(prefix, np.uint16) as writer:
            while writer.num_tokens < tokens // _SHARDS:
                drawn = rng.lognormal(np.log(1000) - 0.5, 1.0, 4000)
                lengths = np.maximum(drawn, 1).astype(np.int64)
                ids = rng.integers(0, 49_152, int(lengths.sum()), dtype=np.uint16)
                writer.add_documents(ids, lengths)
            writer.commit()
        prefixes.append(prefix)
    return prefixes


def megatron_merge(prefixes: list[str], output: str) -> None:
    """As Megatron-LM's tools/merge_datasets.py does it."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{output}.bin", dtype=np.uint16)
    for prefix in prefixes:
        builder.add_index(prefix)
    builder.finalize(f"{output}.idx")


def main() -> None:
    """Run all steps and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tokens", type=float, default=2e8)
    parser.add_argument("--folder", help="for the data (default: a temporary one)")
    parser.add_argument("--csv", help="append the figures to this file")
    arguments = parser.parse_args()
    import megatron.core.datasets.indexed_dataset  # noqa: F401  (its import does not count)

    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        shards = write_shards(folder, int(arguments.tokens))
        whole = str(folder / "merged")
        steps: dict[str, Callable[[], object]] = {
            "merge": lambda: merge(shards, whole),
            "megatron-core merge": lambda: megatron_merge(shards, str(folder / "theirs")),
            "verify": lambda: verify(whole, vocab_size=49_152, eod=0),
            "lengths": lambda: count_lengths(IndexedDatasetReader(whole)),
            "split": lambda: split([whole], str(folder / "parts"), valid=0.01),
        }
        rows = [_measure(step, work, whole) for step, work in steps.items()]
        same = all(
            (folder / f"merged{end}").read_bytes() == (folder / f"theirs{end}").read_bytes()
            for end in (".bin", ".idx")
        )
        print(f"both merges wrote the same bytes: {same}")
    if arguments.csv:
        _keep(Path(arguments.csv), rows)


def _measure(step: str, work: Callable[[], object], whole: str) -> dict[str, object]:
    started, processor = time.monotonic(), time.process_time()
    with PeakMemory() as memory:
        work()
    seconds, busy = time.monotonic() - started, time.process_time() - processor
    reader = IndexedDatasetReader(whole)
    tokens, documents = len(reader.tokens), reader.num_documents
    row = {
        "step": step,
        "documents": documents,
        "tokens": tokens,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(busy, 2),
        "mtokens_per_s": round(tokens / seconds / 1e6, 1),
        "mtokens_per_cpu_s": round(tokens / busy / 1e6, 1),
        "extra_mb": round(memory.extra / 1e6, 1),
    }
    print("  ".join(f"{key} {value}" for key, value in row.items()))
    return row


def _keep(target: Path, rows: list[dict[str, object]]) -> None:
    facts = {
        "date": date.today().isoformat(),
        "device": device(),
        "cores": os.cpu_count(),
        "numpy": version("numpy"),
        "megatron_core": version("megatron-core"),
    }
    is_new = not target.exists()
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "a", newline="") as stream:
        writer = csv.DictWriter(stream, [*facts, *rows[0]], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows({**facts, **row} for row in rows)


if __name__ == "__main__":
    main()
