"""Which datasets a tool's inputs name, in an order people expect."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from fixedcode_megatron.data.index_format import bin_path, idx_path
from fixedcode_megatron.errors import UserError


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which part_2 comes before part_10."""
    pieces = re.split(r"([0-9]+)", name)
    return [(1, int(p), p) if p.isdigit() else (0, 0, p) for p in pieces if p]


def expand_prefixes(
    inputs: Sequence[str], *, exclude: str | None = None, flag: str = "--input"
) -> list[str]:
    """Prefixes of datasets from folders, globs and prefixes, in the order given.

    A folder stands for the datasets directly in it, a glob for those it matches, both in natural
    order; a name may carry .bin or .idx. Other files of a folder are left alone.

    Parameters
    ----------
    exclude
        A prefix that is never an input, the output's: dropped where a folder or glob finds it.

    Raises
    ------
    UserError
        If an input names nothing, half a pair, a dataset twice, or `exclude` itself.
    """
    prefixes: list[str] = []
    for given in inputs:
        if bin_path(given).is_file() or idx_path(given).is_file():
            found = [given]
        elif Path(given).is_dir():
            found = _in_folder(given, flag)
        elif glob.has_magic(given):
            names = {_bare(name) for name in glob.glob(given) if name.endswith((".bin", ".idx"))}
            names |= {_bare(name) for name in glob.glob(f"{given}.idx")}
            found = sorted(names, key=natural_key)
            if not found:
                raise UserError(f"{flag} {given}: matches no dataset (.bin and .idx)")
        else:
            found = [_bare(given)]
        if exclude is not None and given not in (exclude, *_pair_names(exclude)):
            found = [prefix for prefix in found if not _same(prefix, exclude)]
        prefixes.extend(found)
    _check(prefixes, exclude, flag)
    return prefixes


def _in_folder(folder: str, flag: str) -> list[str]:
    names = [name for name in os.listdir(folder) if name.endswith((".bin", ".idx"))]
    stems = sorted({_bare(name) for name in names}, key=natural_key)
    if not stems:
        raise UserError(f"{flag} {folder}: the folder holds no dataset (.bin and .idx)")
    return [os.path.join(folder, stem) for stem in stems]


def _check(prefixes: Sequence[str], exclude: str | None, flag: str) -> None:
    seen: dict[str, str] = {}
    for prefix in prefixes:
        if exclude is not None and _same(prefix, exclude):
            raise UserError(
                f"{flag} {prefix} is the output itself: choose another --output-prefix, or leave "
                "it out of the inputs"
            )
        for path in (idx_path(prefix), bin_path(prefix)):
            if not path.is_file():
                raise UserError(f"{flag} {prefix}: {path} does not exist")
        real = os.path.realpath(idx_path(prefix))
        if real in seen:
            raise UserError(f"{flag}: {prefix} is given twice ({seen[real]}): name it once")
        seen[real] = prefix
    if not prefixes:
        raise UserError(f"{flag}: nothing is left to read besides the output")


def _bare(name: str) -> str:
    return name[:-4] if name.endswith((".bin", ".idx")) else name


def _pair_names(prefix: str) -> tuple[str, str]:
    return f"{prefix}.bin", f"{prefix}.idx"


def _same(prefix: str, other: str) -> bool:
    return os.path.realpath(idx_path(prefix)) == os.path.realpath(idx_path(other))
