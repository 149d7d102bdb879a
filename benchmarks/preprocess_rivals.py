"""The rivals of benchmarks/preprocess.py; each runs as a process of its own.

python preprocess_rivals.py pool|encode_batch|engine|threads|files TOKENIZER LINES WORKERS OUTPUT
prints a JSON object: tokens; for the engine also the seconds of encoding alone and of starting.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

_tokenizer: Any = None
_start_cpu = 0.0


def _load(folder: str) -> None:
    """In each process of the pool, as Megatron-LM's Encoder.initializer does."""
    global _tokenizer
    import tokenizers

    _tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    _tokenizer.encode_special_tokens = True


def _encode_line(line: str) -> tuple[list[int], int]:
    assert _tokenizer is not None
    ids = _tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids
    return [*ids, 0] if ids else [], len(line)


def pool(folder: str, lines: str, workers: int, output: str) -> dict:
    """A document at a time through a multiprocessing pool, as Megatron-LM's preprocess_data.py."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokens = 0
    context = multiprocessing.get_context("fork")
    with (
        context.Pool(workers, _load, (folder,)) as processes,
        open(output, "wb") as target,
        open(lines, encoding="utf-8") as source,
    ):
        for ids, _ in processes.imap(_encode_line, source, 32):
            target.write(np.array(ids, dtype=np.uint16).tobytes())
            tokens += len(ids)
    return {"tokens": tokens}


def encode_batch(folder: str, lines: str, workers: int, output: str) -> dict:
    """Batches of 256 documents through HF tokenizers' own threads, in one process."""
    os.environ.update(TOKENIZERS_PARALLELISM="true", RAYON_NUM_THREADS=str(workers))
    _load(folder)
    assert _tokenizer is not None
    tokens = 0
    batch: list[str] = []
    with open(lines, encoding="utf-8") as source, open(output, "wb") as target:
        for line in [*source, None]:
            if line is not None:
                batch.append(json.loads(line)["text"])
            if len(batch) == 256 or line is None:
                for encoding in _tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                    ids = [*encoding.ids, 0] if encoding.ids else []
                    target.write(np.array(ids, dtype=np.uint16).tobytes())
                    tokens += len(ids)
                batch = []
    return {"tokens": tokens}


def _prepare(folder: str, lines: str) -> tuple[bytes, list[list[list[bytes]]]]:
    """What the library gets: its tokenizer, and of each 2 MiB the documents, UTF-8, in pieces.

    A document is cut where the library's splitting would not be the tokenizer's.
    """
    from fixedcode_megatron.data.digits import cut_digits
    from fixedcode_megatron.data.engines import CUT, plan_engine
    from fixedcode_megatron.data.tokenizers import build_tokenizer

    plan = plan_engine(build_tokenizer("HuggingFaceTokenizer", folder), "gigatoken")

    def pieces(text: bytes) -> list[bytes]:
        cut = CUT.encode()
        return cut_digits(text, cut)[0].split(cut) if plan.cut_digits else [text]

    blocks = []
    with open(lines, "rb") as source:
        while block := source.readlines(2 << 20):
            blocks.append([pieces(json.loads(line)["text"].encode()) for line in block])
    return plan.definition, blocks


def _load_engine(definition: bytes) -> None:
    global _tokenizer, _start_cpu
    import gigatoken

    _tokenizer = gigatoken.Tokenizer.from_json(definition)
    _start_cpu = time.process_time()


def _encode_share(path: str) -> tuple[int, float, float, float, float]:
    """Encode blocks of text that were prepared; only encoding is timed.

    Returns tokens, begin and end, CPU seconds of encoding, CPU seconds of this process's start.
    """
    blocks = pickle.loads(Path(path).read_bytes())
    assert _tokenizer is not None
    backend, tokens = _tokenizer.backend, 0
    begin, processor = time.monotonic(), time.process_time()
    for block in blocks:
        tokens += len(backend.encode(block))
    return tokens, begin, time.monotonic(), time.process_time() - processor, _start_cpu


def engine(folder: str, lines: str, workers: int, output: str) -> dict:
    """The library alone, first pass, one process per worker, UTF-8 in memory, nothing written.

    Its start is that of a program, which does nothing but start its workers, and of theirs, which
    import the library and load the tokenizer.
    """
    from fixedcode_megatron.data.engines import CUT, END

    definition, blocks = _prepare(folder, lines)
    end, cut = END.encode(), CUT.encode()
    texts = [end.join([*map(cut.join, block), b""]) for block in blocks]
    paths = [f"{output}.{index}" for index in range(workers)]
    for index, path in enumerate(paths):
        Path(path).write_bytes(pickle.dumps(texts[index::workers]))
    started, before = time.monotonic(), os.times()
    subprocess.run([sys.executable, "-c", "import multiprocessing"], check=True)
    after = os.times()
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, _load_engine, (definition,)) as processes:
        processes.map(abs, range(workers), chunksize=1)
        ready = time.monotonic() - started
        results = processes.map(_encode_share, paths, chunksize=1)
    for path in paths:
        Path(path).unlink()
    return {
        "tokens": sum(result[0] for result in results) - sum(text.count(cut) for text in texts),
        "seconds": max(r[2] for r in results) - min(r[1] for r in results),
        "cpu_seconds": sum(result[3] for result in results),
        "start_seconds": ready,
        "start_cpu_seconds": sum(result[4] for result in results)
        + sum(after[2:4])
        - sum(before[2:4]),
    }


def threads(folder: str, lines: str, workers: int, output: str) -> dict:
    """The library's own threads in one process: its batch call on text in memory, first pass."""
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    import gigatoken

    definition, blocks = _prepare(folder, lines)
    pieces = [piece for block in blocks for document in block for piece in document]
    inner = gigatoken.Tokenizer.from_json(definition)
    inner.encode_batch([b"a"])  # imports what it needs
    begin, processor = time.monotonic(), time.process_time()
    tokens = 0
    for first in range(0, len(pieces), 4096):
        tokens += len(
            inner.encode_batch(pieces[first : first + 4096], parallel=True).layout.content
        )
    seconds, busy = time.monotonic() - begin, time.process_time() - processor
    return {"tokens": tokens, "seconds": seconds, "cpu_seconds": busy}


def files(folder: str, lines: str, workers: int, output: str) -> dict:
    """The engine's own reader of JSON lines, with its own threads; its ids stay in memory."""
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    import gigatoken

    source = Path(folder, "tokenizer.json").read_bytes()
    try:
        inner = gigatoken.Tokenizer.from_json(source)
    except RuntimeError:  # a vocabulary that lacks bytes: as our tool hands it to the engine
        inner = gigatoken.Tokenizer.from_json(_prepare(folder, os.devnull)[0])
    return {"tokens": len(inner.encode_files(lines).layout.content)}


RIVALS = {f.__name__: f for f in (pool, encode_batch, engine, threads, files)}

if __name__ == "__main__":
    name, folder, lines, workers, output = sys.argv[1:]
    print(json.dumps(RIVALS[name](folder, lines, int(workers), output)))
