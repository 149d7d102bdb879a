"""Presets: flat YAML files of ``name: value``, with one optional ``base: OTHER`` to build on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig

PRESET_FOLDER = Path(__file__).resolve().parents[2] / "examples" / "configs"
"""Where bare names are looked up; it exists in a checkout only."""


def find(name: str, relative_to: Path | None = None) -> Path | None:
    """Return the file for a path or the bare name of a preset, or None."""
    candidates = [Path(name)]
    if relative_to is not None:
        candidates.insert(0, relative_to / name)
    if "/" not in name:
        candidates += [PRESET_FOLDER / name, PRESET_FOLDER / f"{name}.yaml"]
        if relative_to is not None:
            candidates.append(relative_to / f"{name}.yaml")
    return next((c for c in candidates if c.is_file()), None)


def load(name: str, problems: list[str]) -> dict[str, Any]:
    """Read a preset with everything it is based on; problems are appended, not raised.

    Returns
    -------
    dict
        ``{name: raw value}``; names are not checked here.
    """
    return _load(name, None, (), problems)


def _load(
    name: str, relative_to: Path | None, chain: tuple[Path, ...], problems: list[str]
) -> dict[str, Any]:
    path = find(name, relative_to)
    if path is None:
        known = ", ".join(sorted(p.stem for p in PRESET_FOLDER.glob("*.yaml")))
        hint = f"; presets here: {known}" if known else ""
        problems.append(f"--config {name}: no such file{hint}")
        return {}
    path = path.resolve()
    if path in chain:
        problems.append(f"{path.name}: `base` leads back to itself")
        return {}
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problems.append(f"{path}: not valid YAML: {' '.join(str(error).split())}")
        return {}
    if not isinstance(values, dict):
        problems.append(
            f"{path}: a preset holds `name: value` lines, found {type(values).__name__}"
        )
        return {}
    values = {str(key).replace("-", "_"): value for key, value in values.items()}
    base = values.pop("base", None)
    inherited = _load(str(base), path.parent, (*chain, path), problems) if base else {}
    return inherited | values


def dump(cfg: RunConfig) -> str:
    """Return the tree as YAML that `load` reads back to the same values."""
    from fixedcode_megatron.config.tree import ACTIONS, OPTIONS

    lines: list[str] = []
    section = None
    for name, opt in OPTIONS.items():
        if name in ACTIONS:
            continue
        if opt.sections[0] != section:
            section = opt.sections[0]
            lines += ["", f"# {section}"] if lines else [f"# {section}"]
        value = cfg.get(name)
        text = yaml.safe_dump(value, default_flow_style=True, width=10**9)
        line = f"{name}: {text.splitlines()[0]}"  # a scalar is followed by a line of `...`
        lines.append(line + ("  # on where this machine can" if opt.auto and value is None else ""))
    return "\n".join(lines) + "\n"
