"""A training step of ours with each input interface, and of Hugging Face's Llama, in one run.

    python benchmarks/train_step.py [--rounds 5] [--dtype bf16] [--csv FILE]

All contenders train the same shape (RMSNorm, SwiGLU, rotary positions, untied output) on the same
random tokens with AdamW and gradient clipping, with the same number of threads and the same
allocator settings. Each lives in a process of its own; they take turns, a few steps at a time, so
that drift of the machine hits all alike. Printed are the medians over the rounds, the ratios to
Hugging Face within each round, and the highest resident memory of each process.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sample_index import device

from fixedcode_megatron.cpu_platform import keep_allocated_memory

RIVAL = "huggingface"
CONTENDERS = (RIVAL, "learned", "binary", "gf2")
Step = Callable[[], object]


def main() -> None:
    """Measure, print a table, and write a CSV where asked to."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "random_text_document"
        _write_random_tokens(prefix, options)
        processes = {name: _start(name, options, prefix) for name in options.contenders}
        rows = []
        for number in range(options.rounds):
            for name, pipe in processes.items():
                pipe.send("go")
                rows.append({"round": number, "contender": name} | _answer(pipe))
                print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
        for pipe in processes.values():
            pipe.send("stop")
    _print_table(rows)
    if options.csv:
        _write_csv(rows, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--ffn-hidden-size", type=int, default=688)
    parser.add_argument("--num-layers", type=int, default=8)
    parser.add_argument("--num-attention-heads", type=int, default=4)
    parser.add_argument("--seq-length", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=4, help="sequences a step")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="steps a turn")
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--flags", default="", help="further flags for ours, in one word")
    parser.add_argument("--csv", type=Path)
    return parser.parse_args()


def _write_random_tokens(prefix: Path, options: argparse.Namespace) -> None:
    from fixedcode_megatron.data.indexed import IndexedDatasetWriter

    rng = np.random.default_rng(0)
    dtype = np.uint16 if options.vocab_size <= 65536 else np.int32
    with IndexedDatasetWriter(prefix, dtype) as writer:
        for _ in range(8):
            ids = rng.integers(0, options.vocab_size, options.batch_size * options.seq_length)
            writer.add_document(ids.tolist())
        writer.commit()


def _start(name: str, options: argparse.Namespace, prefix: Path) -> Connection:
    """Start a contender's process and wait until it has done its first step."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    arguments = (there, name, options, prefix)
    context.Process(target=_contend, args=arguments, daemon=True).start()
    there.close()
    assert _answer(here) == "ready"
    return here


def _answer(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        sys.exit("a contender's process has ended: see its message above")


def _contend(pipe: Connection, name: str, options: argparse.Namespace, prefix: Path) -> None:
    torch.set_num_threads(options.threads)
    keep_allocated_memory()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    step = _huggingface(options, prefix) if name == RIVAL else _ours(name, options, prefix)
    step()
    step()
    pipe.send("ready")
    while pipe.recv() == "go":
        started, cpu_started = time.perf_counter(), time.process_time()
        for _ in range(options.steps):
            step()
        seconds = time.perf_counter() - started
        tokens = options.steps * options.batch_size * options.seq_length
        pipe.send(
            {
                "tokens_per_s": round(tokens / seconds, 1),
                "tokens_per_cpu_s": round(tokens / (time.process_time() - cpu_started), 1),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
        )


def _ours(name: str, options: argparse.Namespace, prefix: Path) -> Step:
    """Our training step: the loop's own, with its data path."""
    from fixedcode_megatron import pretrain, runtime
    from fixedcode_megatron.config import parse_args
    from fixedcode_megatron.model.gpt import run_vocabulary
    from fixedcode_megatron.training.step import train_step
    from fixedcode_megatron.training.trainer import build_trainer

    flags = (
        f"--input-interface {name} --vocab-size {options.vocab_size} --data-path {prefix} "
        f"--num-layers {options.num_layers} --hidden-size {options.hidden_size} "
        f"--ffn-hidden-size {options.ffn_hidden_size} --seq-length {options.seq_length} "
        f"--num-attention-heads {options.num_attention_heads} --swiglu --normalization RMSNorm "
        "--disable-bias-linear --hidden-dropout 0 --attention-dropout 0 --split 1,0,0 "
        f"--micro-batch-size {options.batch_size} --global-batch-size {options.batch_size} "
        "--train-iters 100000 --lr 1e-4 --clip-grad 1 --device cpu --tokenizer-type NullTokenizer "
        f"--data-cache-path {prefix.parent / 'cache'} {options.flags}"
    )
    if options.dtype == "bf16":
        flags += " --bf16"
    cfg = parse_args(flags.split())
    started = runtime.initialize(cfg)
    trainer = build_trainer(cfg, started, run_vocabulary(cfg, options.vocab_size))
    tokenizer = pretrain.load_tokenizer(cfg)
    feeds = pretrain.build_feeds(cfg, tokenizer, options.vocab_size)
    assert feeds.train is not None
    trainer.set_batch_size()
    iterators = feeds.train.iterators(0)
    return lambda: train_step(trainer, iterators)


def _huggingface(options: argparse.Namespace, prefix: Path) -> Step:
    """The same model and step with transformers, as its users write it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=options.vocab_size,
        hidden_size=options.hidden_size,
        intermediate_size=options.ffn_hidden_size,
        num_hidden_layers=options.num_layers,
        num_attention_heads=options.num_attention_heads,
        max_position_embeddings=options.seq_length,
        tie_word_embeddings=False,
        use_cache=False,
    )
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    model = LlamaForCausalLM(config).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    tokens = np.memmap(f"{prefix}.bin", np.uint16 if options.vocab_size <= 65536 else np.int32)
    size, position = options.batch_size * options.seq_length, 0

    def step() -> None:
        nonlocal position
        ids = torch.from_numpy(tokens[position : position + size].astype(np.int64))
        position = (position + size) % (len(tokens) - size + 1) // size * size
        ids = ids.view(options.batch_size, options.seq_length)
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _print_table(rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(row["contender"] for row in rows))

    def column(name: str, key: str) -> list[float]:
        return [row[key] for row in rows if row["contender"] == name]

    print(f"\n{'':12}{'tokens/s':>10}{'/ HF':>7}{'spread':>14}{'peak MB':>9}")
    for name in names:
        rates = column(name, "tokens_per_s")
        line = f"{name:12}{statistics.median(rates):10.0f}"
        if RIVAL in names:
            ratios = [a / b for a, b in zip(rates, column(RIVAL, "tokens_per_s"), strict=True)]
            line += f"{statistics.median(ratios):7.2f}{min(ratios):8.2f}-{max(ratios):.2f} "
        print(f"{line}{max(column(name, 'peak_mb')):9.0f}")


def _write_csv(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    from importlib.metadata import version

    common = {
        "date": datetime.date.today().isoformat(),
        "device": device(),
        "threads": options.threads,
        "dtype": options.dtype,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "megatron_core": version("megatron-core"),
    }
    with open(options.csv, "w", newline="") as file:
        writer = csv.DictWriter(file, [*common, *rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(common | row for row in rows)


if __name__ == "__main__":
    main()
