"""The grid file: which runs there are, and what is compared with what (see docs/comparisons.md)."""

from __future__ import annotations

import difflib
import itertools
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from fixedcode_megatron.errors import UserError

SEED = "seed"
KEYS = ("title", "folder", "config", "flags", "axes", "compare", "processes", "gpu", "slurm")
SLURM_KEYS = ("script", "options")
_OURS = {
    "run_dir": "every run gets a folder of its own below `folder`",
    "save": "checkpoints go below `folder`",
    "load": "checkpoints go below `folder`",
    "print_config": "python -m fixedcode_megatron.pretrain has it",
    "count_parameters": "python -m fixedcode_megatron.pretrain has it",
    "skip_train": "a comparison trains",
}


@dataclass(frozen=True)
class Cell:
    """One run of the grid.

    Attributes
    ----------
    labels
        The axes' values by axis, as the report shows them.
    flags
        The preset and all flags of the grid for it, the axes' last; `{name}` in them is its name.
    """

    name: str
    labels: dict[str, str]
    flags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A validated grid file.

    Attributes
    ----------
    axes
        ``{axis: {label: flags}}``.
    compare
        The axis that is compared; seeds are repetitions, every other axis is a setting.
    """

    title: str
    folder: Path
    cells: tuple[Cell, ...]
    axes: dict[str, dict[str, tuple[str, ...]]]
    compare: str
    processes: int = 1
    gpu: str | None = None
    slurm_script: str = "examples/slurm/pretrain_one_node.sbatch"
    slurm_options: tuple[str, ...] = ()

    @property
    def settings(self) -> list[str]:
        """The axes that are neither compared nor repetitions."""
        return [axis for axis in self.axes if axis not in (self.compare, SEED)]


def read_grid(path: Path, *, folder: str | None = None, processes: int | None = None) -> Grid:
    """Read and check a grid file.

    Parameters
    ----------
    folder, processes
        In place of the file's.

    Raises
    ------
    UserError
        With every mistake found in the file.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: a grid holds `name: value` lines; examples/grids has some")
    problems: list[str] = []
    grid = _grid(content, path, problems)
    if problems or grid is None:
        raise UserError("\n".join(f"{path}: {problem}" for problem in problems))
    return replace(
        grid,
        folder=grid.folder if folder is None else Path(folder),
        processes=grid.processes if processes is None else processes,
    )


def _grid(content: dict[Any, Any], path: Path, problems: list[str]) -> Grid | None:
    for key in content:
        if key not in KEYS:
            problems.append(f"{key}: no such key{_suggest(str(key), KEYS)}")
    base: list[str] = []
    if "config" in content:
        base += ["--config", str(content["config"])]
    base += _words(content.get("flags", ""), "flags", problems)
    axes = _axes(content.get("axes"), problems)
    compare = content.get("compare", next((axis for axis in axes if axis != SEED), None))
    if axes and (compare not in axes or compare == SEED):
        others = ", ".join(axis for axis in axes if axis != SEED) or "an axis other than seed"
        problems.append(f"compare: {compare} is no axis that can be compared; name one of {others}")
    slurm = content.get("slurm") or {}
    if not isinstance(slurm, dict) or any(key not in SLURM_KEYS for key in slurm):
        problems.append(f"slurm: holds {' and '.join(SLURM_KEYS)}, found {slurm}")
        slurm = {}
    processes = content.get("processes", 1)
    if not isinstance(processes, int) or processes < 1:
        problems.append(f"processes: {processes}; give a whole number of at least 1")
    gpu = content.get("gpu")
    if gpu not in (None, "a100", "h100", "h200"):
        problems.append(f"gpu: {gpu}; a100, h100 and h200 are known")
    options = _words(slurm.get("options", ""), "slurm: options", problems)
    cells = _cells(tuple(base), axes, problems)
    _check_flags([*base, *itertools.chain(*(cell.flags for cell in cells))], problems)
    if problems:
        return None
    given = {"slurm_script": str(slurm["script"])} if "script" in slurm else {}
    return Grid(
        title=str(content.get("title", path.stem)),
        folder=Path(str(content.get("folder", f"runs/{path.stem}"))),
        cells=cells,
        axes=axes,
        compare=str(compare),
        processes=processes,
        gpu=gpu,
        slurm_options=tuple(options),
        **given,
    )


def _axes(given: Any, problems: list[str]) -> dict[str, dict[str, tuple[str, ...]]]:
    """``{axis: {label: flags}}`` of the file's axes."""
    if not isinstance(given, dict) or not given:
        problems.append("axes: missing; give at least one, as `input_interface: [learned, binary]`")
        return {}
    axes: dict[str, dict[str, tuple[str, ...]]] = {}
    for key, values in given.items():
        axis = str(key).replace("-", "_")
        if not isinstance(values, list | dict) or not values:
            problems.append(f"axis {axis}: has no values; give a list, or named sets of flags")
        elif isinstance(values, dict):
            axes[axis] = {
                str(label): tuple(_words(flags, f"axis {axis}: {label}", problems))
                for label, flags in values.items()
            }
        else:
            axes[axis] = _values(axis, values, problems)
    return axes


def _values(axis: str, values: list[Any], problems: list[str]) -> dict[str, tuple[str, ...]]:
    from fixedcode_megatron.config.options import flag_of, negation
    from fixedcode_megatron.config.tree import OPTIONS

    if axis not in OPTIONS:
        problems.append(
            f"axis {axis}: no such setting{_suggest(axis, list(OPTIONS))}; an axis of another name "
            "gives named sets of flags"
        )
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for value in values:
        label = str(value) if isinstance(value, str) else f"{axis} {value}".replace("_", " ")
        if label in found:
            problems.append(f"axis {axis}: {value} stands there twice")
        if OPTIONS[axis].is_switch and isinstance(value, bool):
            found[label] = (flag_of(axis) if value else negation(axis),)
        else:
            words = value if isinstance(value, list) else ["none" if value is None else value]
            found[label] = (flag_of(axis), *map(str, words))
    return found


def _words(given: Any, where: str, problems: list[str]) -> list[str]:
    """A line of flags, or a list of them, as words."""
    if given is None:
        return []
    try:
        parts = [given] if isinstance(given, str) else [str(part) for part in given]
        return [word for part in parts for word in shlex.split(part)]
    except (TypeError, ValueError) as error:
        problems.append(f"{where}: {given}: write flags as on a command line ({error})")
        return []


def _cells(
    base: tuple[str, ...], axes: dict[str, dict[str, tuple[str, ...]]], problems: list[str]
) -> tuple[Cell, ...]:
    cells: dict[str, Cell] = {}
    for choice in itertools.product(*(values.items() for values in axes.values())):
        labels = {axis: label for axis, (label, _) in zip(axes, choice, strict=True)}
        name = "-".join(re.sub(r"[^A-Za-z0-9._+]+", "", label) for label in labels.values())
        flags = (*base, *itertools.chain(*(flags for _, flags in choice)))
        if name in cells:
            both = f"{cells[name].labels} and {labels}"
            problems.append(f"axes: two runs have the name {name} ({both}); name the values apart")
        cells[name] = Cell(name, labels, tuple(flag.replace("{name}", name) for flag in flags))
    return tuple(cells.values()) if axes else ()


def _check_flags(words: Sequence[str], problems: list[str]) -> None:
    for flag in dict.fromkeys(word.split("=")[0] for word in words):
        name = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and name in _OURS:
            problems.append(f"{flag} has no place in a grid: {_OURS[name]}")


def _suggest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)[:200]}"
