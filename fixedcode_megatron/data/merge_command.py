"""The command line of `tools/merge_datasets.py`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fixedcode_megatron.data.index_format import bin_path
from fixedcode_megatron.data.merge import merge
from fixedcode_megatron.data.natural import expand_prefixes
from fixedcode_megatron.data.tool_runner import run_tool
from fixedcode_megatron.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Merge datasets into one."""
    arguments = _parser().parse_args(argv)
    return run_tool(lambda: _work(arguments), writes=not arguments.dry_run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Merge Megatron's indexed datasets (.bin/.idx) into one. Memory does not grow "
        "with their number or size; the output appears whole or not at all.",
        epilog="example: merge_datasets.py --input shards/ --output-prefix all_text_document",
        fromfile_prefix_chars="@",
    )
    parser.add_argument(
        "--input", nargs="+", required=True, metavar="FOLDER|GLOB|PREFIX",
        help="what to merge, in this order; a folder or glob in natural order (p_2 before p_10), "
        "without the output itself; @FILE reads arguments from a file, one a line",
    )  # fmt: skip
    parser.add_argument("--output-prefix", required=True, help="outputs: PREFIX.bin, .idx, .json")
    parser.add_argument(
        "--dtype", choices=("same", "uint16", "int32"), default="same",
        help="same: refuse datasets of different types; else convert to this type, refusing ids "
        "that do not fit",
    )  # fmt: skip
    parser.add_argument(
        "--multimodal", action="store_true",
        help="refuse datasets without modes (modes are found and kept without this flag)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-mixed-tokenizers", action="store_true",
        help="merge although summaries name different tokenizers",
    )  # fmt: skip
    parser.add_argument(
        "--allow-missing-shards", action="store_true",
        help="merge although shards of a preprocessing run are not among the inputs",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    parser.add_argument("--dry-run", action="store_true", help="print the order and stop")
    return parser


def _work(arguments: argparse.Namespace) -> None:
    prefixes = expand_prefixes(arguments.input, exclude=arguments.output_prefix)
    if arguments.multimodal:
        _refuse_without_modes(prefixes)
    if arguments.dry_run:
        print("\n".join(prefixes))
        return
    from tqdm import tqdm

    total = sum(bin_path(prefix).stat().st_size for prefix in prefixes)
    # disable=None: a bar on a terminal, nothing elsewhere
    with tqdm(total=total, unit="B", unit_scale=True, disable=None, file=sys.stderr) as bar:
        summary = merge(
            prefixes,
            arguments.output_prefix,
            dtype=arguments.dtype,
            overwrite=arguments.overwrite,
            mixed_tokenizers=arguments.allow_mixed_tokenizers,
            missing_shards=arguments.allow_missing_shards,
            on_bytes=bar.update,
        )
    print(
        f"{arguments.output_prefix}: {len(prefixes)} datasets, {summary['documents']} documents, "
        f"{summary['tokens']} tokens ({summary['dtype']})"
    )


def _refuse_without_modes(prefixes: Sequence[str]) -> None:
    from fixedcode_megatron.data.index_format import idx_path, read_header

    for prefix in prefixes:
        if not read_header(idx_path(prefix)).multimodal:
            raise UserError(f"--multimodal: {prefix} has no modes; leave the flag out")
