"""`tools/convert_checkpoint.py`: checkpoints to and from Hugging Face folders."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.interop.command import run

_DESCRIPTION = """
Write a checkpoint as a Hugging Face folder (--from megatron --to hf) or a Hugging Face folder, one
of LlamaForCausalLM or of this program, as a checkpoint that a run can start with (--from hf --to
megatron, then --pretrained-checkpoint). Works at any parallel layout on one process, without a GPU.
"""
_UNITS = {"MB": 10**6, "GB": 10**9}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the converter; returns the exit status."""
    return run(_parser(), _convert, argv)


def _convert(options: argparse.Namespace) -> None:
    if options.source == options.target:
        raise UserError(f"--from {options.source} --to {options.target}: one of them is the other")
    if options.target == "hf":
        from fixedcode_megatron.interop.hf_export import export

        export(
            Path(options.load),
            Path(options.save),
            options.form or "plain",
            step=options.ckpt_step,
            tokenizer_model=options.tokenizer_model,
            max_shard_bytes=options.max_shard_size or _UNITS["GB"],
        )
    else:
        from fixedcode_megatron.interop.hf_import import import_folder

        _refuse_flags_of_exports(options)
        import_folder(Path(options.load), Path(options.save))


def _refuse_flags_of_exports(options: argparse.Namespace) -> None:
    names = ("ckpt_step", "form", "tokenizer_model", "max_shard_size")
    given = [f"--{n.replace('_', '-')}" for n in names if getattr(options, n) is not None]
    if given:
        raise UserError(f"--from hf: leave out {', '.join(given)}, which --from megatron takes")


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
        help="plain: a stock architecture whose input table holds the codes; table-free: computes "
        "them, in code of its own (trust_remote_code) [default: plain]",
    )
    add("--tokenizer-model", help="where the tokenizer lies [as in training]")
    add("--max-shard-size", type=_size, help="such as 500MB [default: 1GB]")
    return parser


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)(MB|GB)", text)
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text}: give a size such as 500MB or 2GB")
    return int(found[1]) * _UNITS[found[2]]
