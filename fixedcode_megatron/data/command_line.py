"""Command lines of preprocessing and of training a tokenizer: flags to options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from fixedcode_megatron.data.bpe import train_byte_level_bpe
from fixedcode_megatron.data.engines import ENGINES
from fixedcode_megatron.data.hub import HubDataset
from fixedcode_megatron.data.inputs import READABLE
from fixedcode_megatron.data.preprocess import PreprocessOptions, preprocess
from fixedcode_megatron.data.sentences import SPLITTERS
from fixedcode_megatron.data.tiktoken_tokenizer import PATTERNS
from fixedcode_megatron.data.tokenizers import TOKENIZER_TYPES
from fixedcode_megatron.data.tool_runner import run_tool
from fixedcode_megatron.data.work import open_inputs, read_texts
from fixedcode_megatron.data.workers import available_cores
from fixedcode_megatron.errors import UserError


def add_tokenizer_flags(parser: argparse.ArgumentParser) -> None:
    """Megatron's flags that choose a tokenizer."""
    group = parser.add_argument_group("tokenizer")
    group.add_argument("--tokenizer-type", default="HuggingFaceTokenizer", choices=TOKENIZER_TYPES)
    group.add_argument(
        "--tokenizer-model",
        help="tokenizer.json or a folder that holds one; tokenizer.model; ranks",
    )
    group.add_argument("--vocab-file", help="vocab.json of a GPT2BPETokenizer")
    group.add_argument("--merge-file", help="merges.txt of a GPT2BPETokenizer")
    group.add_argument("--vocab-size", type=int, help="ordinary ids of a NullTokenizer")
    group.add_argument("--tiktoken-pattern", choices=tuple(PATTERNS), help="default: by file name")
    group.add_argument("--tiktoken-special-tokens", nargs="+", metavar="SPELLING")
    group.add_argument(
        "--parse-special-tokens", action="store_true",
        help="spellings of special tokens inside a text become those tokens; default: text",
    )  # fmt: skip


def add_input_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that name the documents."""
    group = parser.add_argument_group("documents")
    group.add_argument("--input", nargs="+", default=[], help=f"files, globs, folders: {READABLE}")
    group.add_argument("--hf-dataset", help="a Hugging Face dataset, by name or local folder")
    group.add_argument("--hf-config")
    group.add_argument("--hf-split", default="train")
    group.add_argument("--hf-streaming", action="store_true", help="read while downloading")
    group.add_argument("--json-keys", nargs="+", default=["text"], help="or columns of a table")
    group.add_argument(
        "--on-error", default="stop", choices=("stop", "skip"),
        help="at what is no document; skip lists it in PREFIX_rejected.jsonl",
    )  # fmt: skip


def hub_dataset(arguments: argparse.Namespace) -> HubDataset | None:
    """The dataset that `--hf-dataset` names."""
    if arguments.hf_dataset is None:
        return None
    return HubDataset(
        arguments.hf_dataset, arguments.hf_config, arguments.hf_split, arguments.hf_streaming
    )


def _preprocess_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Tokenize documents into Megatron's indexed datasets (.bin/.idx)."
    )
    add_input_flags(parser)
    add_tokenizer_flags(parser)
    flag = parser.add_argument
    flag(
        "--tokenizer-engine", default="auto", metavar=f"{{auto,hf,{','.join(ENGINES)}}}",
        help="auto: a fast library if its ids equal HF tokenizers' on a sample of the documents",
    )  # fmt: skip
    flag("--output-prefix", required=True, help="outputs: PREFIX_KEY_document.bin/.idx/.json")
    flag("--append-eod", action="store_true", help="end each document with the EOD id")
    flag("--split-sentences", action="store_true", help="a sequence per sentence")
    flag("--sentence-splitter", default="rules", choices=SPLITTERS)
    flag("--lang", default="english", help="language of --sentence-splitter nltk")
    flag(
        "--keep-newlines", action="store_true",
        help="with --split-sentences: white space between sentences stays, at the end of the first",
    )  # fmt: skip
    flag("--workers", type=int, default=available_cores(), help="0: in this process")
    flag("--dtype", default="auto", choices=("auto", "uint16", "int32"))
    flag("--overwrite", action="store_true")
    flag(
        "--resume", action=argparse.BooleanOptionalAction, default=None,
        help="continue an interrupted run; the default, if it was the same command",
    )  # fmt: skip
    flag(
        "--checkpoint-interval", type=float, default=5.0,
        help="seconds of work that an interruption may cost; 0: no checkpoints",
    )  # fmt: skip
    flag("--num-shards", type=int, default=1, help="do one of so many equal parts")
    flag("--shard-index", type=int, default=0, help="which one, from 0")
    flag("--max-tokens", type=int, help="stop after the document that reaches this number")
    flag(
        "--log-interval", type=float, default=10.0, help="seconds between lines without a terminal"
    )
    flag("--partitions", type=int, help="ignored: one run reads all files in order")
    flag("--keep-sequential-samples", action="store_true", help="ignored: always so")
    return parser


def preprocess_main(argv: Sequence[str] | None = None) -> int:
    """`tools/preprocess_data.py`."""
    parsed = _preprocess_parser().parse_args(argv)
    names = {field.name for field in fields(PreprocessOptions)}
    given = {name: value for name, value in vars(parsed).items() if name in names - {"hf_dataset"}}
    options = PreprocessOptions(hf_dataset=hub_dataset(parsed), **given)

    def work() -> None:
        summaries = preprocess(options)
        for prefix, summary in zip(options.dataset_prefixes(), summaries, strict=False):
            skipped = ", ".join(f"{n} {kind}" for kind, n in summary["skipped"].items()) or "none"
            seconds = max(summary["seconds"], 1e-3)
            rate = f"{summary['tokens'] / 1e6 / seconds:.2f} Mtok/s"
            if summary["input_bytes"]:  # not known of a dataset of Hugging Face
                rate = f"{summary['input_bytes'] / 1e6 / seconds:.1f} MB/s, {rate}"
            print(
                f"{prefix}: {summary['documents']} documents, {summary['tokens']} tokens "
                f"({summary['dtype']}), skipped: {skipped}; {rate} "
                f"({summary['tokenizer_engine']})"
            )

    return run_tool(work, writes=False)


def train_tokenizer_main(argv: Sequence[str] | None = None) -> int:
    """`tools/train_tokenizer.py`."""
    parser = argparse.ArgumentParser(
        description="Train a byte-level BPE; id 0 is <|endoftext|>, every byte has an id."
    )
    add_input_flags(parser)
    parser.add_argument("--vocab-size", type=int, required=True, help="exact, such as 65536")
    parser.add_argument("--output", required=True, help="folder for tokenizer.json")
    parser.add_argument("--overwrite", action="store_true")
    arguments = parser.parse_args(argv)

    def work() -> None:
        path = Path(arguments.output) / "tokenizer.json"
        if path.exists() and not arguments.overwrite:
            raise UserError(f"{path} exists: choose another --output or add --overwrite")
        inputs = open_inputs(arguments.input, hub_dataset(arguments), arguments.json_keys)
        texts = read_texts(inputs, arguments.json_keys, stop=arguments.on_error == "stop")
        train_byte_level_bpe(texts, arguments.vocab_size, path)
        print(f"{path}: {arguments.vocab_size} ids, <|endoftext|> is 0")

    return run_tool(work, writes=False)
