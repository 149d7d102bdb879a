"""The rivals of benchmarks/preprocess.py; each runs as a process of its own.

python preprocess_rivals.py pool|encode_batch|engine|threads|files TOKENIZER LINES WORKERS OUTPUT
prints a JSON object: tokens; for the engine also the seconds of encoding alone and of starting.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

_STARTED = time.monotonic()
_tokenizer = None
_encoder = None
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


def _build_engine(folder: str) -> None:
    global _encoder, _start_cpu
    from fixedcode_megatron.data import engines
    from fixedcode_megatron.data.engine_check import candidates
    from fixedcode_megatron.data.fast_encoder import FastEncoder
    from fixedcode_megatron.data.tokenizers import build_tokenizer

    tokenizer = build_tokenizer("HuggingFaceTokenizer", folder)
    plan = candidates(tokenizer, "auto")[0]
    assert plan is not None, "no engine does this tokenizer"
    engines._PROCESS_BYTES = 1 << 40  # the library's own cache has no bound
    _encoder = FastEncoder(plan, lambda: tokenizer)
    _start_cpu = time.process_time()


def _encode_share(share: tuple[str, int, int]) -> tuple[int, float, float, float, float]:
    """Encode every n-th 200 documents, read and parsed beforehand; only encoding is timed.

    Returns tokens, begin and end, CPU seconds of encoding, CPU seconds of this process's start.
    """
    lines, index, count = share
    blocks, held = [], []
    with open(lines, "rb") as source:
        for number, line in enumerate(source):
            if number // 200 % count == index:
                held.append(json.loads(line)["text"])
            if len(held) == 200:
                blocks.append(held)
                held = []
    blocks.append(held)
    assert _encoder is not None
    begin, processor = time.monotonic(), time.process_time()
    tokens = 0
    for block in blocks:
        tokens += len(_encoder.encode_marked(block)[0])
    busy = time.process_time() - processor
    return tokens, begin, time.monotonic(), busy, _start_cpu


def engine(folder: str, lines: str, workers: int, output: str) -> dict:
    """The engine alone, first pass, one process per worker, nothing read or written meanwhile."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, _build_engine, (folder,)) as processes:
        processes.map(abs, range(workers))
        ready, started = time.monotonic() - _STARTED, time.process_time()
        shares = [(lines, index, workers) for index in range(workers)]
        results = processes.map(_encode_share, shares, chunksize=1)
    seconds = max(r[2] for r in results) - min(r[1] for r in results)
    busy = sum(result[3] for result in results)
    tokens = sum(result[0] for result in results)
    return {
        "tokens": tokens,
        "seconds": seconds,
        "cpu_seconds": busy,
        "start_seconds": ready,
        "start_cpu_seconds": started + sum(result[4] for result in results),
    }


def threads(folder: str, lines: str, workers: int, output: str) -> dict:
    """The engine's own threads in one process: its batch call on text in memory, first pass."""
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    import gigatoken

    from fixedcode_megatron.data.digits import find_cuts
    from fixedcode_megatron.data.engines import plan_engine
    from fixedcode_megatron.data.tokenizers import build_tokenizer

    plan = plan_engine(build_tokenizer("HuggingFaceTokenizer", folder), "gigatoken")
    with open(lines, "rb") as source:
        texts = [json.loads(line)["text"] for line in source]
    pieces = []
    for data in (text.encode() for text in texts):
        bounds = [0, *(find_cuts(data)[0].tolist() if plan.cut_digits else ()), len(data)]
        pieces += [data[first:last] for first, last in pairwise(bounds)]
    inner = gigatoken.Tokenizer.from_json(plan.definition.decode())
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
        from fixedcode_megatron.data.engines import plan_engine
        from fixedcode_megatron.data.tokenizers import build_tokenizer

        plan = plan_engine(build_tokenizer("HuggingFaceTokenizer", folder), "gigatoken")
        inner = gigatoken.Tokenizer.from_json(plan.definition)
    return {"tokens": len(inner.encode_files(lines).layout.content)}


RIVALS = {f.__name__: f for f in (pool, encode_batch, engine, threads, files)}

if __name__ == "__main__":
    name, folder, lines, workers, output = sys.argv[1:]
    print(json.dumps(RIVALS[name](folder, lines, int(workers), output)))
