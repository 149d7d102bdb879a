"""The command line of `tools/inspect_dataset.py`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from fixedcode_megatron.data.indexed import IndexedDatasetReader
from fixedcode_megatron.data.inspection import (
    as_text,
    count_lengths,
    describe,
    parse_documents,
    show_document,
)
from fixedcode_megatron.data.lengths import draw_histogram, text_histogram
from fixedcode_megatron.data.natural import expand_prefixes
from fixedcode_megatron.data.tokenizers import TOKENIZER_TYPES, Tokenizer, build_tokenizer
from fixedcode_megatron.data.tool_runner import run_tool
from fixedcode_megatron.data.verify import verify


def main(argv: Sequence[str] | None = None) -> int:
    """Show, measure and verify datasets."""
    arguments = _parser().parse_args(argv)
    return run_tool(lambda: _work(arguments), writes=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Show what is in Megatron's indexed datasets (.bin/.idx): figures, documents "
        "as text, a histogram of lengths; --verify reads everything and exits with 1 if something "
        "is wrong.",
        epilog="example: inspect_dataset.py web_text_document --documents 0 -1 "
        "--tokenizer-model smollm2/ --verify",
    )
    parser.add_argument(
        "input", nargs="+", metavar="PREFIX|FOLDER|GLOB", help="datasets to look at"
    )
    parser.add_argument(
        "--documents", nargs="+", default=[], metavar="N",
        help="show these: numbers from 0, -1 for the last, ranges such as 10:13",
    )  # fmt: skip
    parser.add_argument(
        "--max-tokens", type=int, default=1000, help="tokens of a document to show (%(default)s)"
    )
    parser.add_argument(
        "--histogram", metavar="text|FILE.png", help="lengths of documents, as text or a picture"
    )
    parser.add_argument("--verify", action="store_true", help="sizes, bounds, ids, document ends")
    parser.add_argument(
        "--vocab-size", type=int,
        help="--verify: ids must be below it (default: the tokenizer's, else the summary's)",
    )  # fmt: skip
    parser.add_argument(
        "--eod-id", type=int,
        help="--verify: id that ends documents (default: the tokenizer's, else the summary's)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="figures as JSON, one dataset a line")
    group = parser.add_argument_group("tokenizer, to show text instead of ids")
    group.add_argument("--tokenizer-type", choices=TOKENIZER_TYPES)
    group.add_argument("--tokenizer-model", help="as for preprocess_data.py")
    group.add_argument("--vocab-file", help="vocab.json of a GPT2BPETokenizer")
    group.add_argument("--merge-file", help="merges.txt of a GPT2BPETokenizer")
    group.add_argument("--tiktoken-pattern", help="as for preprocess_data.py")
    group.add_argument("--tiktoken-special-tokens", nargs="+", metavar="SPELLING")
    return parser


def _tokenizer(arguments: argparse.Namespace) -> Tokenizer | None:
    kind = arguments.tokenizer_type
    if kind is None and arguments.tokenizer_model is None:
        return None
    names = ["tokenizer_model", "vocab_file", "merge_file", "vocab_size"]
    names += ["tiktoken_pattern", "tiktoken_special_tokens"]
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    return build_tokenizer(kind or "HuggingFaceTokenizer", **given)


def _work(arguments: argparse.Namespace) -> int:
    tokenizer = _tokenizer(arguments)
    status = 0
    prefixes = expand_prefixes(arguments.input, flag="input")
    for prefix in prefixes:
        if arguments.verify:
            status |= _verify(arguments, prefix, tokenizer)
        if status:
            continue  # figures of a damaged dataset would mislead
        reader = IndexedDatasetReader(prefix)
        counts = count_lengths(reader)
        facts = describe(reader, counts)
        print(json.dumps(facts) if arguments.json else as_text(facts))
        if arguments.histogram == "text":
            print(text_histogram(counts))
        elif arguments.histogram:
            path = _picture(Path(arguments.histogram), prefix, len(prefixes))
            draw_histogram(counts, Path(prefix).name, path)
            print(f"  histogram            {path}")
        for number in parse_documents(arguments.documents, reader.num_documents):
            print(show_document(reader, number, tokenizer, arguments.max_tokens))
    return status


def _picture(path: Path, prefix: str, datasets: int) -> Path:
    """A file for each dataset."""
    return path if datasets == 1 else path.with_stem(f"{path.stem}_{Path(prefix).name}")


def _verify(arguments: argparse.Namespace, prefix: str, tokenizer: Tokenizer | None) -> int:
    vocab_size, eod = arguments.vocab_size, arguments.eod_id
    if tokenizer is not None:
        if vocab_size is None or arguments.tokenizer_type == "NullTokenizer":
            vocab_size = tokenizer.vocab_size  # a NullTokenizer adds its end of document
        eod = tokenizer.eod_id if eod is None else eod
    found = verify(prefix, vocab_size=vocab_size, eod=eod)
    if not arguments.json:
        for note in found.notes:
            print(f"{prefix}: {note}")
    for problem in found.problems:
        print(f"{prefix}: PROBLEM: {problem}")
    if not found.problems and not arguments.json:
        print(f"{prefix}: verified, no problem found")
    return 1 if found.problems else 0
