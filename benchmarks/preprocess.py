#!/usr/bin/env python3
"""Preprocessing: our tool, and in the same run a pool on HF tokenizers, encode_batch, the engine.

    python benchmarks/preprocess.py                       100 MB of text found on this machine
    python benchmarks/preprocess.py --size 5 --repeats 1  a quick look, for continuous integration
    python benchmarks/preprocess.py --corpus FILE.jsonl --tokenizer FOLDER ...

Without --tokenizer two are trained on the text: a GPT-2-style BPE of 50,257 ids and a SmolLM2-style
one (digits apart) of 49,152. Rivals that take minutes see the first --slow-size megabytes only;
their rate does not depend on the size. Repeats are interleaved; the CSV holds each of them, the
printed ratios use medians. CPU seconds count all processes and are steadier than wall seconds on a
busy machine. Peak memory is that of one more run of each, which is not timed, for watching takes
time.

`engine` is the library alone, first pass, one process per worker, by the call that our tool uses,
on UTF-8 that lies in memory; its start (the program's interpreter and the workers', the library,
the tokenizer) is not in its seconds but in start_seconds, and the ratio is printed with it and
without it: ours is a whole command, start, reading, parsing, proof and writing included. `threads`
is the library in one process, by its own batch call and threads, without its start. `files` is the
library as a command: a process that reads the same file by the library's own reader and threads; it
writes nothing. What the library cannot split as the tokenizer does is cut for it beforehand, but
for `files`.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

import psutil
from sample_index import device
from text_corpus import gather

ROOT = Path(__file__).parents[1]
SLOW = ("pool", "encode_batch")
RIVALS = ("engine", "threads", "files", *SLOW)


def train(corpus: Path, folder: Path, digits: bool) -> Path:
    """Train a byte-level BPE on the first 16 MB of a corpus."""
    import tokenizers
    from tokenizers import pre_tokenizers

    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if digits:
        split = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), split])
    inner.pre_tokenizer = split
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=49_152 if digits else 50_257,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with open(corpus, encoding="utf-8") as lines:
        inner.train_from_iterator(
            (json.loads(x)["text"] for x in lines.readlines(1 << 24)), trainer
        )
    folder.mkdir()
    inner.save(str(folder / "tokenizer.json"))
    return folder


def head(corpus: Path, size: int, target: Path) -> Path:
    """The first whole lines of a corpus, up to `size` bytes."""
    with open(corpus, "rb") as source:
        target.write_bytes(b"".join(source.readlines(size)))
    return target


class TreeMemory:
    """Highest sum of the proportional set sizes of a process and its descendants, in bytes."""

    def __init__(self, process: psutil.Process) -> None:
        self.peak = 0
        self._process = process
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            total = 0
            for one in [self._process, *self._children()]:
                try:
                    total += one.memory_full_info().pss
                except (psutil.Error, AttributeError):
                    continue
            self.peak = max(self.peak, total)

    def _children(self) -> list[psutil.Process]:
        try:
            return self._process.children(recursive=True)
        except psutil.Error:
            return []

    def __enter__(self) -> TreeMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def run(command: list[str], watch: bool = False) -> tuple[str, int]:
    """What a command printed, and, if it is to be watched, its peak memory in bytes."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    memory = TreeMemory(psutil.Process(process.pid))
    with memory if watch else contextlib.nullcontext():
        out, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{errors}")
    return out, memory.peak


def measure(name: str, command: list[str], lines: Path) -> dict[str, float | int | str]:
    """Run a command; its wall and CPU seconds, with all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    out, _ = run(command)
    seconds = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    answer = json.loads(out) if out.startswith("{") else {}
    seconds, busy = answer.get("seconds", seconds), answer.get("cpu_seconds", busy)
    megabytes = lines.stat().st_size / 1e6
    return {
        "contender": name,
        "megabytes": round(megabytes, 1),
        "seconds": round(seconds, 3),
        "cpu_seconds": round(busy, 3),
        "start_seconds": round(answer.get("start_seconds", 0), 3),
        "start_cpu_seconds": round(answer.get("start_cpu_seconds", 0), 3),
        "tokens": answer.get("tokens", 0),
        "mb_per_s": round(megabytes / seconds, 2),
        "mb_per_cpu_s": round(megabytes / busy, 2),
    }


def run_tokenizer(
    tokenizer: Path, corpus: Path, slow: Path, workers: int, repeats: int, folder: Path
) -> list[dict]:
    """All contenders, interleaved."""
    rows: list[dict] = []
    ours = [sys.executable, str(ROOT / "tools/preprocess_data.py"), "--append-eod"]
    ours += ["--tokenizer-model", str(tokenizer), "--input", str(corpus), "--workers", str(workers)]
    ours += ["--output-prefix", str(folder / "ours")]
    commands = {"ours": (ours, corpus)}
    for rival in RIVALS:
        lines = slow if rival in SLOW else corpus
        script = str(ROOT / "benchmarks/preprocess_rivals.py")
        arguments = [rival, str(tokenizer), str(lines), str(workers), str(folder / rival)]
        commands[rival] = ([sys.executable, script, *arguments], lines)
    peaks = {name: run(command, watch=True)[1] for name, (command, _) in commands.items()}
    for repeat in range(repeats):
        for name, (command, lines) in commands.items():
            if name in SLOW and repeat >= 2:
                continue  # two repeats of the slow ones are enough
            for path in folder.glob("ours*"):
                path.unlink()
            row = measure(name, command, lines)
            row["peak_mb"] = round(peaks[name] / 1e6)
            if name == "ours":
                summary = json.loads((folder / "ours_text_document.json").read_text())
                row["tokens"] = summary["tokens"]
                row["engine"] = summary["tokenizer_engine"]
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    for row in rows:
        row["tokenizer"] = tokenizer.name
        row["mtokens_per_s"] = round(row["tokens"] / row["seconds"] / 1e6, 3)
    return rows


def report(rows: list[dict]) -> None:
    """Print our rate and its ratio to each rival's: by wall and by CPU seconds."""

    def median(name: str, key: str) -> float:
        return statistics.median(row[key] for row in rows if row["contender"] == name)

    name = rows[0]["tokenizer"]
    print(
        f"\n{name}: ours {median('ours', 'mb_per_s'):.1f} MB/s, peak {median('ours', 'peak_mb')} MB"
    )
    for rival in RIVALS:
        wall = median("ours", "mb_per_s") / median(rival, "mb_per_s")
        busy = median("ours", "mb_per_cpu_s") / median(rival, "mb_per_cpu_s")
        rate = f"{median(rival, 'mb_per_s'):.1f} MB/s"
        if rival == "engine":
            rate += ", without its start"
        print(f"  ours / {rival} ({rate}): {wall:.2f}x by wall, {busy:.2f}x by CPU seconds")
        if rival == "engine":
            seconds, cpu = (
                median(rival, key) + median(rival, f"start_{key}")
                for key in ("seconds", "cpu_seconds")
            )
            wall, busy = seconds / median("ours", "seconds"), cpu / median("ours", "cpu_seconds")
            rate = f"{median(rival, 'megabytes') / seconds:.1f} MB/s, with its start"
            print(f"  ours / {rival} ({rate}): {wall:.2f}x by wall, {busy:.2f}x by CPU seconds")


def save(target: Path, rows: list[dict], workers: int) -> None:
    """Append the rows to a CSV file."""
    facts = {
        "date": date.today().isoformat(),
        "device": device(),
        "cores": psutil.cpu_count(),
        "workers": workers,
        "tokenizers": version("tokenizers"),
        "gigatoken": version("gigatoken"),
    }
    names = ["tokenizer", "contender", "engine"]
    names += [key for key in rows[0] if key not in names]
    is_new = not target.exists()
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "a", newline="") as stream:
        writer = csv.DictWriter(stream, [*facts, *names], lineterminator="\n", restval="")
        if is_new:
            writer.writeheader()
        writer.writerows({**facts, **row} for row in rows)


def main() -> None:
    """Gather text, train tokenizers, run, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, help="JSON lines instead of this machine's text")
    parser.add_argument("--size", type=float, default=100, help="megabytes of text to gather")
    parser.add_argument("--slow-size", type=float, default=10, help="megabytes for slow rivals")
    parser.add_argument("--tokenizer", type=Path, nargs="+", help="folders with a tokenizer.json")
    parser.add_argument("--workers", type=int, default=len(psutil.Process().cpu_affinity()))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--csv", type=Path, default=ROOT / "benchmarks/results/preprocess.csv")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = arguments.corpus or folder / "corpus.jsonl"
        if arguments.corpus is None:
            print(f"{gather(corpus, int(arguments.size * 1e6)) / 1e6:.1f} MB of text gathered")
        slow = head(corpus, int(arguments.slow_size * 1e6), folder / "slow.jsonl")
        chosen = arguments.tokenizer or [
            train(corpus, folder / "gpt2-style", digits=False),
            train(corpus, folder / "smollm2-style", digits=True),
        ]
        for tokenizer in chosen:
            rows = run_tokenizer(
                tokenizer, corpus, slow, arguments.workers, arguments.repeats, folder
            )
            report(rows)
            save(arguments.csv, rows, arguments.workers)


if __name__ == "__main__":
    main()
