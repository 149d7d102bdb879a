"""Tables of every setting of ours, for docs/configuration.md.

``python -m fixedcode_megatron.config.reference`` prints them; a test keeps the page equal.
"""

from __future__ import annotations

from fixedcode_megatron.config.aliases import ALIASES, IGNORED, REFUSED, TAKES_VALUE, Alias
from fixedcode_megatron.config.options import flag_of
from fixedcode_megatron.config.sections import OUR_SECTIONS
from fixedcode_megatron.config.tree import OPTIONS


def tables() -> str:
    """Return a Markdown table for each section of ours."""
    parts = []
    for section, cls in OUR_SECTIONS.items():
        assert cls.__doc__ is not None
        rows = [f"### {section}", "", cls.__doc__.splitlines()[0], "", "| flag | default | |"]
        rows.append("|---|---|---|")
        for opt in OPTIONS.values():
            if opt.sections[0] == section:
                default = "" if opt.default is None else f"`{opt.default}`"
                rows.append(f"| `{opt.flag}` | {default} | {_cell(opt.help)} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def megatron_flags() -> str:
    """Return tables of Megatron-LM's other flags: renamed, ignored, refused."""
    renamed = [(name, _meaning(alias)) for name, alias in ALIASES.items()]
    parts = [
        _table("### Other names", "means", renamed),
        _table("### Ignored, with a notice", "because", list(IGNORED.items())),
        _table("### Refused", "because", list(REFUSED.items())),
    ]
    return "\n\n".join(parts) + "\n"


def _table(title: str, column: str, rows: list[tuple[str, str]]) -> str:
    lines = [title, "", f"| flag | {column} |", "|---|---|"]
    return "\n".join(lines + [f"| `{flag_of(name)}` | {_cell(text)} |" for name, text in rows])


def _meaning(alias: Alias) -> str:
    """Return what an alias stands for, as flags."""
    words = []
    for target in alias.targets:
        flag = flag_of(target)
        if alias.const is False:
            flag = flag_of(f"no_{target}")
        elif alias.const not in (True, TAKES_VALUE):
            flag += f" {alias.const}"
        words.append(f"`{flag}`")
    return ", ".join(words)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(tables())
    print(megatron_flags(), end="")
