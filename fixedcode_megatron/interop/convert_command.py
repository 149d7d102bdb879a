"""`tools/convert_checkpoint.py`: checkpoints to and from Hugging Face folders."""

from __future__ import annotations

import argparse
import gc
import logging
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from fixedcode_megatron.data.tool_runner import run_tool
from fixedcode_megatron.errors import UserError

_DESCRIPTION = """
Write a checkpoint as a Hugging Face folder (--from megatron --to hf) or a Hugging Face folder, one
of LlamaForCausalLM or of this program, as a checkpoint that a run can start with (--from hf --to
megatron, then --pretrained-checkpoint). Works at any parallel layout on one process, without a GPU.
"""
_UNITS = {"MB": 10**6, "GB": 10**9}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the converter; returns the exit status."""
    logging.getLogger("megatron").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"megatron\.core|torch\.distributed")
    options = _parser().parse_args(argv)
    try:
        return run_tool(lambda: _convert(options), writes=False)
    finally:
        gc.unfreeze()  # what is frozen counts as leaked for the libraries that torch brings along


def _convert(options: argparse.Namespace) -> None:
    if options.source == options.target:
        raise UserError(f"--from {options.source} --to {options.target}: one of them is the other")
    try:
        import safetensors  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"{error.name} is not installed: pip install transformers safetensors"
        ) from error
    if options.target == "hf":
        from fixedcode_megatron.interop.hf_export import export

        export(
            Path(options.load),
            Path(options.save),
            options.form,
            step=options.ckpt_step,
            tokenizer_model=options.tokenizer_model,
            max_shard_bytes=options.max_shard_size,
        )
    else:
        from fixedcode_megatron.interop.hf_import import import_folder

        import_folder(Path(options.load), Path(options.save))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="convert_checkpoint.py", description=_DESCRIPTION, allow_abbrev=False
    )
    add = parser.add_argument
    add("--from", dest="source", choices=("megatron", "hf"), required=True)
    add("--to", dest="target", choices=("megatron", "hf"), required=True)
    add("--load", required=True, help="folder of checkpoints, or one of them; or the HF folder")
    add("--save", required=True, help="folder to write; must be new")
    add("--ckpt-step", type=int, help="iteration of the checkpoint [the newest]")
    add(
        "--form",
        choices=("plain", "table-free"),
        default="plain",
        help="plain: a stock architecture whose input table holds the codes; table-free: computes "
        "them, in code of its own (trust_remote_code) [default: plain]",
    )
    add("--tokenizer-model", help="where the tokenizer lies [as in training]")
    add("--max-shard-size", type=_size, default="1GB", help="such as 500MB [default: 1GB]")
    return parser


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)(MB|GB)", text)
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text}: give a size such as 500MB or 2GB")
    return int(found[1]) * _UNITS[found[2]]
