"""The command line of `tools/split_dataset.py`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fixedcode_megatron.data.index_format import bin_path
from fixedcode_megatron.data.natural import expand_prefixes
from fixedcode_megatron.data.split import split
from fixedcode_megatron.data.tool_runner import run_tool


def main(argv: Sequence[str] | None = None) -> int:
    """Hold documents out of datasets."""
    arguments = _parser().parse_args(argv)
    return run_tool(lambda: _work(arguments), writes=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Split Megatron's indexed datasets (.bin/.idx) into training, validation and "
        "test documents. A hash of a document's ids decides, so equal documents stay together and "
        "the choice does not depend on order, shards or what else is in the dataset.",
        epilog="example: split_dataset.py --input web_text_document --output-prefix web "
        "--valid 0.001, then train with --train-data-path web_train --valid-data-path web_valid",
    )
    parser.add_argument(
        "--input", nargs="+", required=True, metavar="PREFIX|FOLDER|GLOB",
        help="datasets, in this order; a folder or glob in natural order",
    )  # fmt: skip
    parser.add_argument(
        "--output-prefix", required=True, help="outputs: PREFIX_train, PREFIX_valid, PREFIX_test"
    )
    parser.add_argument("--valid", type=float, required=True, help="share of documents, 0.001")
    parser.add_argument("--test", type=float, default=0.0, help="share of documents (none)")
    parser.add_argument("--seed", type=int, default=0, help="another seed holds others out")
    parser.add_argument("--overwrite", action="store_true", help="replace existing outputs")
    return parser


def _work(arguments: argparse.Namespace) -> None:
    from tqdm import tqdm

    prefixes = expand_prefixes(arguments.input)
    total = sum(bin_path(prefix).stat().st_size for prefix in prefixes)
    # disable=None: a bar on a terminal, nothing elsewhere
    with tqdm(total=total, unit="B", unit_scale=True, disable=None, file=sys.stderr) as bar:
        parts = split(
            prefixes,
            arguments.output_prefix,
            valid=arguments.valid,
            test=arguments.test,
            seed=arguments.seed,
            overwrite=arguments.overwrite,
            on_bytes=bar.update,
        )
    everything = sum(part["documents"] for part in parts.values())
    for name, part in parts.items():
        print(
            f"{arguments.output_prefix}_{name}: {part['documents']:,} documents "
            f"({part['documents'] / everything:.4%}), {part['tokens']:,} tokens"
        )
    flags = " ".join(f"--{name}-data-path {arguments.output_prefix}_{name}" for name in parts)
    print(f"train with: {flags}")
