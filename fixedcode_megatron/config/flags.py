"""The parser: every flag there is, and the text of `--help`."""

from __future__ import annotations

import argparse
import re
from functools import partial
from typing import Any

from fixedcode_megatron.config.aliases import ALIASES, IGNORED, REFUSED
from fixedcode_megatron.config.docstrings import field_docs
from fixedcode_megatron.config.megatron_fields import MEGATRON_SECTIONS
from fixedcode_megatron.config.options import Option, flag_of, negation
from fixedcode_megatron.config.tree import OPTIONS

_FOOTNOTE = """
Every setting can stand in a preset under its name with underscores. `none` takes back what a
preset says. Fields of megatron-core are listed as the installed version has them. Megatron-LM's
other flags are accepted, ignored with a notice, or refused with the reason: docs/configuration.md.
"""


class _Collect(argparse.Action):
    """Append (flag as typed, values) to ``namespace.flags``; meaning is given to them later."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        namespace.flags.append((option_string, values))


class _Formatter(argparse.HelpFormatter):
    """Show ``--flag VALUE``, although the parser itself lets any number of values pass."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return f"{', '.join(action.option_strings)} {action.metavar or ''}".rstrip()


def build_parser(*, with_help: bool = False) -> argparse.ArgumentParser:
    """Return the parser of every flag: our options, then Megatron-LM's other names for them.

    It only sorts words into flags and values, so that one pass finds all problems. `with_help`
    reads the help texts of megatron-core's fields from its source.
    """
    parser = argparse.ArgumentParser(
        prog="python -m fixedcode_megatron.pretrain",
        usage="%(prog)s [--config PRESET] [--flag VALUE ...]",
        description="Pre-train a language model. Flags have Megatron-LM's names.",
        epilog=_FOOTNOTE,
        allow_abbrev=False,
        formatter_class=_Formatter,
    )
    # argparse takes `-1e-3` for a flag; this is the pattern by which it tells numbers.
    parser._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
    parser.set_defaults(flags=[])
    add = partial(parser.add_argument, action=_Collect, nargs="*")
    add("--config", metavar="PRESET", help="YAML file, or the name of one in examples/configs")
    docs = megatron_docs() if with_help else {}
    groups: dict[str, Any] = {}
    for opt in OPTIONS.values():
        section = opt.sections[0]
        if section not in groups:
            groups[section] = parser.add_argument_group(section)
        groups[section].add_argument(
            *([opt.flag, negation(opt.name)] if opt.is_switch else [opt.flag]),
            dest=opt.name,
            action=_Collect,
            nargs="*",
            metavar=_metavar(opt),
            help=_help(opt, docs),
        )
    known = set(parser._option_string_actions)
    negated = [f"no_{name}" for name in IGNORED]
    for flag in map(flag_of, (*ALIASES, *IGNORED, *REFUSED, *negated)):
        if flag not in known:
            known.add(flag)
            add(flag, help=argparse.SUPPRESS)
    return parser


def _metavar(opt: Option) -> str:
    if opt.is_switch:
        return ""
    one = f"{{{','.join(opt.choices)}}}" if opt.choices else opt.kind.upper()
    return f"{one} ..." if opt.container else one


def _help(opt: Option, docs: dict[str, str]) -> str:
    text = opt.help or docs.get(opt.name, "")
    default = "on where the machine can" if opt.auto else opt.default
    if default is not None and default not in ("", []):
        text += f" [default: {default}]"
    return text.replace("%", "%%")


def megatron_docs() -> dict[str, str]:
    """Return the help texts of all of megatron-core's fields."""
    docs: dict[str, str] = {}
    for cls in reversed(MEGATRON_SECTIONS.values()):
        docs |= field_docs(cls)
    return docs
