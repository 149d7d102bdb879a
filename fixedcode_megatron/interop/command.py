"""What the programs that need transformers have in common."""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch

from fixedcode_megatron.data.tool_runner import run_tool
from fixedcode_megatron.errors import UserError

_NEEDS = {"transformers": "transformers", "safetensors": "safetensors"}


def run(
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace], None],
    argv: Sequence[str] | None,
    *,
    needs: Mapping[str, str] = _NEEDS,
) -> int:
    """Do `work` with the flags in `argv`; returns the exit status.

    Parameters
    ----------
    needs
        Packages that must be there: names to import, and what pip calls them.
    """
    logging.getLogger("megatron").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"megatron\.core|torch\.distributed")
    options = parser.parse_args(argv)

    def work_with_transformers() -> None:
        for name in needs:
            _need(name, needs)
        work(options)

    try:
        return run_tool(work_with_transformers, writes=False)
    finally:
        gc.unfreeze()  # what is frozen counts as leaked for the libraries that torch brings along


def _need(name: str, needs: Mapping[str, str]) -> None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        packages = " ".join(needs.values())
        raise UserError(f"{error.name} is not installed: pip install {packages}") from error


def check_device(name: str) -> None:
    """Refuse a --device that torch cannot use here."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"--device {name}: torch sees no CUDA device; use --device cpu")
    try:
        torch.zeros(1, device=name).tolist()
    except (RuntimeError, AssertionError) as error:  # no such kind, or none of it here
        raise UserError(f"--device {name}: torch cannot use it; use cpu or cuda") from error
