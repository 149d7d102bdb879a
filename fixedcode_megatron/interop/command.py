"""What the programs that need transformers have in common."""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import warnings
from collections.abc import Callable, Sequence

from fixedcode_megatron.data.tool_runner import run_tool
from fixedcode_megatron.errors import UserError


def run(
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace], None],
    argv: Sequence[str] | None,
) -> int:
    """Do `work` with the flags in `argv`; returns the exit status."""
    logging.getLogger("megatron").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"megatron\.core|torch\.distributed")
    options = parser.parse_args(argv)

    def work_with_transformers() -> None:
        for name in ("transformers", "safetensors"):
            _need(name)
        work(options)

    try:
        return run_tool(work_with_transformers, writes=False)
    finally:
        gc.unfreeze()  # what is frozen counts as leaked for the libraries that torch brings along


def _need(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"{error.name} is not installed: pip install transformers safetensors"
        ) from error
