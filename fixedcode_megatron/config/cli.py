"""The command line: flags > preset (`--config`) > defaults, all problems reported at once."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any

from fixedcode_megatron.config import precision, presets
from fixedcode_megatron.config.aliases import (
    ALIASES,
    REFUSED,
    REFUSED_VALUES,
    TAKES_VALUE,
    ignored,
    refused_prefix,
)
from fixedcode_megatron.config.flags import build_parser
from fixedcode_megatron.config.options import MISSING_VALUE, flag_of, negation, parse
from fixedcode_megatron.config.problems import ConfigError
from fixedcode_megatron.config.tree import OPTIONS, RunConfig, default_config
from fixedcode_megatron.config.validate import validate


def parse_args(argv: Sequence[str] | None = None, *, world_size: int | None = None) -> RunConfig:
    """Return the resolved and validated configuration.

    Parameters
    ----------
    argv
        Flags; default: the program's own.
    world_size
        Number of ranks; default: ``WORLD_SIZE`` in the environment, else 1.

    Raises
    ------
    ConfigError
        With every problem found: unknown flags and preset keys, values that do not read,
        combinations that do not work.
    """
    if world_size is None:
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
    cfg, problems = read(sys.argv[1:] if argv is None else argv)
    problems += validate(cfg, world_size, complete=not problems)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return cfg


def read(argv: Sequence[str]) -> tuple[RunConfig, list[str]]:
    """Apply preset and flags to the defaults; nothing is derived or checked across values.

    Returns
    -------
    RunConfig, list of str
        The tree, and a problem for each flag or preset key that was not understood.
    """
    cfg = default_config()
    problems: list[str] = []
    with_help = "--help" in argv or "-h" in argv
    parsed, extras = build_parser(with_help=with_help).parse_known_args(list(argv))
    problems += _unknown(extras)
    for preset in [_raw(values) for flag, values in parsed.flags if flag == "--config"]:
        if not isinstance(preset, str):
            problems.append("--config: needs one file or name of a preset")
            continue
        for name, raw in presets.load(preset, problems).items():
            _apply_preset(cfg, name, raw, preset, problems)
    for flag, values in parsed.flags:
        if flag != "--config":
            _apply_flag(cfg, flag, values, problems)
    precision.expand(cfg, problems)
    # A preset's `prepare_data` is for the preset's own path, not for one given as a flag.
    if cfg.given.get("data_path") == "flag" and cfg.given.get("prepare_data") == "preset":
        cfg.set("prepare_data", "none")
    return cfg, problems


def _unknown(extras: Sequence[str]) -> list[str]:
    """Return a problem for each unknown flag; words after one are taken for its values."""
    problems = [_unknown_flag(word) for word in extras if word.startswith("-")]
    if extras and not extras[0].startswith("-"):
        problems.append(f"{extras[0]}: belongs to no flag; flags begin with --")
    return problems


def _unknown_flag(flag: str) -> str:
    flag = flag.split("=")[0]
    name = flag.removeprefix("--").replace("-", "_")
    if reason := refused_prefix(name):
        return f"{flag}: {reason}"
    known = [o.flag for o in OPTIONS.values()] + [flag_of(a) for a in ALIASES] + ["--config"]
    known += [negation(o.name) for o in OPTIONS.values() if o.is_switch]
    return f"{flag}: no such flag{_suggest(flag, known)}"


def _suggest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else "; --help lists them all"


def _apply_preset(cfg: RunConfig, name: str, raw: Any, preset: str, problems: list[str]) -> None:
    where = f"{preset}: {name}"
    if name not in OPTIONS:
        if reason := refused_prefix(name):
            problems.append(f"{where}: {reason}")
        elif name in ALIASES:
            problems.append(f"{where}: a flag only; write {' and '.join(ALIASES[name].targets)}")
        else:
            problems.append(f"{where}: no such setting{_suggest(name, list(OPTIONS))}")
        return
    _set(cfg, name, raw, where, problems, source="preset")


def _apply_flag(cfg: RunConfig, flag: str, values: list[str], problems: list[str]) -> None:
    name = flag.removeprefix("--").replace("-", "_")
    if name in ALIASES:
        alias = ALIASES[name]
        for target in alias.targets:
            if target in OPTIONS:
                given = _raw(values) if alias.const is TAKES_VALUE else alias.const
                _set(cfg, target, given, flag, problems)
            else:
                problems.append(f"{flag}: the installed megatron-core has no {target}")
        if alias.const is not TAKES_VALUE and values:
            problems.append(f"{flag}: takes no value, found {' '.join(values)}")
    elif name in REFUSED:
        problems.append(f"{flag}: {REFUSED[name]}")
    elif name in OPTIONS:
        opt = OPTIONS[name]
        if opt.is_switch and not values:
            _set(cfg, name, True, flag, problems)
        else:
            _set(cfg, name, values if opt.container and values else _raw(values), flag, problems)
    elif reason := ignored(name):
        if values and (refusal := REFUSED_VALUES.get((name, values[0]))):
            problems.append(f"{flag} {values[0]}: {refusal}")
        else:
            cfg.notices.append(f"{flag} is ignored: {reason}")
    else:
        _apply_negation(cfg, flag, values, problems)


def _apply_negation(cfg: RunConfig, flag: str, values: list[str], problems: list[str]) -> None:
    """Turn off the bool whose negation this flag is."""
    name = next(o.name for o in OPTIONS.values() if o.is_switch and negation(o.name) == flag)
    if values:
        problems.append(f"{flag}: takes no value, found {' '.join(values)}")
    _set(cfg, name, False, flag, problems)


def _raw(values: list[str]) -> Any:
    """Return the one value, several as a list (an error later), or the mark of a missing one."""
    if not values:
        return MISSING_VALUE
    return values[0] if len(values) == 1 else values


def _set(
    cfg: RunConfig, name: str, raw: Any, where: str, problems: list[str], source: str = "flag"
) -> None:
    if isinstance(raw, str) and (reason := REFUSED_VALUES.get((name, raw))):
        problems.append(f"{where} {raw}: {reason}")
        return
    try:
        cfg.set(name, parse(OPTIONS[name], raw))
    except ValueError as error:
        problems.append(f"{where}: {error}")
        return
    cfg.given[name] = source
