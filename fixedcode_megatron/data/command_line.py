"""Command lines of the data tools: flags to options, errors to one message, signals to clean-up."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fixedcode_megatron.data.bpe import train_byte_level_bpe
from fixedcode_megatron.data.documents import expand_inputs, read_texts
from fixedcode_megatron.data.preprocess import PreprocessOptions, preprocess
from fixedcode_megatron.data.tokenizers import TOKENIZER_TYPES
from fixedcode_megatron.data.workers import available_cores
from fixedcode_megatron.errors import UserError


def run_tool(work: Callable[[], None]) -> int:
    """Run `work` as a program: 0, or 1 and one line for a mistake, 130 and 143 for signals.

    SIGTERM ends through the same clean-up as Ctrl-C, so no temporary file stays behind.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)

    def terminate(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, terminate)
    try:
        work()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error}; nothing was left at the output prefix", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was left at the output prefix", file=sys.stderr)
        return 130
    return 0


def add_tokenizer_flags(parser: argparse.ArgumentParser) -> None:
    """Megatron's flags that choose a tokenizer."""
    group = parser.add_argument_group("tokenizer")
    group.add_argument("--tokenizer-type", default="HuggingFaceTokenizer", choices=TOKENIZER_TYPES)
    group.add_argument("--tokenizer-model", help="tokenizer.json, or a folder that holds one")
    group.add_argument("--vocab-file", help="vocab.json of a GPT2BPETokenizer")
    group.add_argument("--merge-file", help="merges.txt of a GPT2BPETokenizer")
    group.add_argument("--vocab-size", type=int, help="ordinary ids of a NullTokenizer")


def preprocess_main(argv: Sequence[str] | None = None) -> int:
    """`tools/preprocess_data.py`."""
    parser = argparse.ArgumentParser(
        description="Tokenize JSON lines into Megatron's indexed datasets (.bin/.idx)."
    )
    parser.add_argument(
        "--input", nargs="+", required=True, help="files, globs or folders (.jsonl, .gz)"
    )
    parser.add_argument("--json-keys", nargs="+", default=["text"])
    parser.add_argument(
        "--output-prefix", required=True, help="outputs: PREFIX_KEY_document.bin/.idx"
    )
    parser.add_argument(
        "--append-eod", action="store_true", help="end each document with the EOD id"
    )
    parser.add_argument("--workers", type=int, default=available_cores(), help="0: in this process")
    parser.add_argument("--dtype", default="auto", choices=("auto", "uint16", "int32"))
    parser.add_argument("--on-error", default="stop", choices=("stop", "skip"))
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--partitions", type=int, help="ignored: one run reads all files in order")
    parser.add_argument("--keep-sequential-samples", action="store_true", help="ignored: always so")
    parser.add_argument(
        "--log-interval", type=float, default=10.0, help="seconds between lines without a terminal"
    )
    add_tokenizer_flags(parser)
    arguments = vars(parser.parse_args(argv))
    for ignored in ("partitions", "keep_sequential_samples"):
        del arguments[ignored]
    options = PreprocessOptions(**arguments)

    def work() -> None:
        for summary in preprocess(options):
            skipped = ", ".join(f"{n} {kind}" for kind, n in summary["skipped"].items()) or "none"
            print(
                f"{options.output_prefix}_{summary['key']}_document: "
                f"{summary['documents']} documents, {summary['tokens']} tokens "
                f"({summary['dtype']}), skipped: {skipped}; "
                f"{summary['input_bytes'] / 1e6 / max(summary['seconds'], 1e-3):.1f} MB/s"
            )

    return run_tool(work)


def train_tokenizer_main(argv: Sequence[str] | None = None) -> int:
    """`tools/train_tokenizer.py`."""
    parser = argparse.ArgumentParser(
        description="Train a byte-level BPE; id 0 is <|endoftext|>, every byte has an id."
    )
    parser.add_argument(
        "--input", nargs="+", required=True, help="files, globs or folders (.jsonl, .gz)"
    )
    parser.add_argument("--json-keys", nargs="+", default=["text"])
    parser.add_argument("--vocab-size", type=int, required=True, help="exact, such as 65536")
    parser.add_argument("--output", required=True, help="folder for tokenizer.json")
    parser.add_argument("--on-error", default="stop", choices=("stop", "skip"))
    parser.add_argument("--overwrite", action="store_true")
    arguments = parser.parse_args(argv)

    def work() -> None:
        path = Path(arguments.output) / "tokenizer.json"
        if path.exists() and not arguments.overwrite:
            raise UserError(f"{path} exists: choose another --output or add --overwrite")
        files = expand_inputs(arguments.input)
        texts = read_texts(files, arguments.json_keys, stop=arguments.on_error == "stop")
        train_byte_level_bpe(texts, arguments.vocab_size, path)
        print(f"{path}: {arguments.vocab_size} ids, <|endoftext|> is 0")

    return run_tool(work)
