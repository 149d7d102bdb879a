#!/usr/bin/env python3
"""Time and memory of the sample index of a large training run, on synthetic data.

The `.idx` is real, its document lengths drawn from a log-normal distribution; the `.bin` is a
sparse file of zeros, so that 100B tokens take no room. Each step runs in a process of its own;
memory is that process's own (anonymous) memory at its peak, without pages of files and without
what the imports take.

    python benchmarks/sample_index.py              # paper B: 100B of 102B tokens, 102M documents
    python benchmarks/sample_index.py --documents 1e6       # a quick look
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from fixedcode_megatron.data.index_format import bin_path, idx_path, pack_header, sequence_pointers

_CHUNK = 1 << 20
_SIGMA = 1.0  # spread of the logarithm of document lengths; web text has about this


def synthesise(prefix: str, documents: int, tokens: int, seed: int) -> int:
    """Write an index of `documents` documents, about `tokens` tokens; returns the exact number."""
    itemsize = 2
    mu = np.log(tokens / documents) - _SIGMA**2 / 2

    def chunks() -> object:
        rng = np.random.default_rng(seed)
        for first in range(0, documents, _CHUNK):
            drawn = rng.lognormal(mu, _SIGMA, min(_CHUNK, documents - first))
            yield np.maximum(drawn, 1).astype(np.int32)

    offset = 0
    with open(idx_path(prefix), "wb") as stream:
        stream.write(pack_header(np.dtype(np.uint16), documents, documents + 1))
        for lengths in chunks():
            stream.write(lengths.data)
        for lengths in chunks():
            stream.write(sequence_pointers(lengths, itemsize, offset).data)
            offset += int(lengths.sum(dtype=np.int64)) * itemsize
        for first in range(0, documents + 1, _CHUNK):
            stream.write(np.arange(first, min(first + _CHUNK, documents + 1)).data)
    with open(bin_path(prefix), "wb") as stream:
        stream.truncate(offset)
    return offset // itemsize


class PeakMemory:
    """Highest anonymous memory of this process while the block runs, above that at its start."""

    def __enter__(self) -> PeakMemory:
        self._first = self.peak = self._now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.extra = max(self.peak, self._now()) - self._first

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.peak = max(self.peak, self._now())

    @staticmethod
    def _now() -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return 1024 * int(line.split()[1])
        raise RuntimeError("no RssAnon in /proc/self/status: this needs Linux")


def measure(arguments: argparse.Namespace) -> dict:
    """One step: build, or load what was built."""
    import logging
    import warnings

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import megatron.core.datasets.blended_dataset
    import megatron.core.datasets.gpt_dataset  # noqa: F401  (imports do not count)

    import fixedcode_megatron.data.sample_index  # noqa: F401
    from fixedcode_megatron.data.datasets import build_datasets

    data = SimpleNamespace(
        data_path=arguments.data_path, split="100,0,0", data_cache_path=arguments.cache
    )
    tokenizer = SimpleNamespace(vocab_size=1 << 16, eod_id=0, unique_identifiers={})
    samples = -(-int(arguments.train_tokens) // arguments.seq_length)
    started, processor = time.monotonic(), time.process_time()
    with PeakMemory() as memory:
        dataset, _, _ = build_datasets(
            data, tokenizer, seq_length=arguments.seq_length, seed=1, samples=(samples, 0, 0)
        )
    return {
        "samples": len(dataset),
        "seconds": time.monotonic() - started,
        "cpu_seconds": time.process_time() - processor,
        "extra_mb": memory.extra / 1e6,
    }


def device() -> str:
    """Name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main() -> None:
    """Make the data, measure both steps, print and keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--documents", type=float, default=102e6)
    parser.add_argument("--tokens", type=float, help="default: 1000 for each document")
    parser.add_argument("--train-tokens", type=float, help="default: tokens / 1.02, one epoch")
    parser.add_argument("--seq-length", type=int, default=2048)
    parser.add_argument("--blend", action="store_true", help="0.8 and 0.2 of two datasets")
    parser.add_argument("--folder", help="for data and index (default: a temporary one, removed)")
    parser.add_argument("--csv", help="append the figures to this file")
    parser.add_argument("--step", choices=("build", "load"), help=argparse.SUPPRESS)
    parser.add_argument("--data-path", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.tokens = arguments.tokens or 1000 * arguments.documents
    arguments.train_tokens = arguments.train_tokens or arguments.tokens / 1.02
    if arguments.step:
        print(json.dumps(measure(arguments)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        run(arguments, Path(folder))


def run(arguments: argparse.Namespace, folder: Path) -> None:
    """Both steps, each in a fresh process."""
    documents, tokens = int(arguments.documents), int(arguments.tokens)
    shares = {"web": 0.8, "books": 0.2} if arguments.blend else {"web": 1.0}
    path, exact = [], 0
    started = time.monotonic()
    for seed, (name, share) in enumerate(shares.items()):
        prefix = str(folder / name)
        exact += synthesise(prefix, int(documents * share), int(tokens * share), seed)
        path += [str(share), prefix]
    print(
        f"{documents:,} documents, {exact:,} tokens, sequence length {arguments.seq_length}; "
        f"synthetic data made in {time.monotonic() - started:.0f} s"
    )
    flags = [
        "--documents",
        str(documents),
        "--tokens",
        str(exact),
        "--cache",
        str(folder / "index"),
    ]
    flags += ["--seq-length", str(arguments.seq_length), "--data-path", *path]
    figures = {}
    for step in ("build", "load"):
        command = [sys.executable, __file__, "--step", step, *flags]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        figures[step] = json.loads(done.stdout.splitlines()[-1])
    files = [p for p in (folder / "index").rglob("*") if p.is_file()]
    build, load = figures["build"], figures["load"]
    row = {
        "date": date.today().isoformat(),
        "device": device(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "megatron_core": version("megatron-core"),
        "documents": documents,
        "tokens": exact,
        "train_tokens": int(arguments.train_tokens),
        "datasets": len(shares),
        "samples": build["samples"],
        "build_s": round(build["seconds"], 1),
        "build_cpu_s": round(build["cpu_seconds"], 1),
        "build_extra_mb": round(build["extra_mb"]),
        "build_bytes_per_document": round(build["extra_mb"] * 1e6 / documents, 1),
        "index_mb": round(sum(p.stat().st_size for p in files) / 1e6),
        "load_s": round(load["seconds"], 2),
        "load_extra_mb": round(load["extra_mb"], 1),
    }
    for name, value in row.items():
        print(f"  {name:<26} {value:,}" if isinstance(value, int) else f"  {name:<26} {value}")
    if arguments.csv:
        target = Path(arguments.csv)
        is_new = not target.exists()
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "a", newline="") as stream:
            writer = csv.DictWriter(stream, list(row), lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(row)


if __name__ == "__main__":
    main()
