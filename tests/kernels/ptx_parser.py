"""Parses the PTX that compilers emit into entries with decoded instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

WIDTHS = {"pred": 1, **{f"{kind}{n}": n for kind in "bus" for n in (8, 16, 32, 64)}}


@dataclass
class Instruction:
    """``@guard op.modifiers operands``; operands stay text (registers, numbers, addresses)."""

    op: tuple[str, ...]
    operands: list[str]
    guard: str | None = None
    negated: bool = False

    def __str__(self) -> str:
        guard = f"@{'!' if self.negated else ''}{self.guard} " if self.guard else ""
        return f"{guard}{'.'.join(self.op)} {', '.join(self.operands)}"

    @property
    def type(self) -> str:
        """The last modifier that names a type: ``u32`` of ``add.u32``."""
        return next((part for part in reversed(self.op) if part in WIDTHS), "b64")


@dataclass
class Entry:
    """One kernel: the byte offset and size of each parameter, the instructions, the labels."""

    name: str
    parameters: dict[str, tuple[int, int]] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)[^{;]*\{", re.S)
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)(?:\s+\.ptr(?:\s+\.global)?(?:\s+\.align\s+\d+)?)?"
    r"\s+([\w$]+)(?:\[(\d+)\])?"
)
_STATEMENT = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.]*)\s*(.*)", re.S)


def parse(text: str) -> dict[str, Entry]:
    """Return the entries of a PTX module by name."""
    text = re.sub(r"//[^\n]*", "", text)
    return {match[1]: _parse_entry(match, text) for match in _ENTRY.finditer(text)}


def _parse_entry(match: re.Match[str], text: str) -> Entry:
    entry = Entry(match[1])
    offset = 0
    for align, kind, name, count in _PARAMETER.findall(match[2]):
        size = WIDTHS[kind] // 8 * int(count or 1)
        boundary = int(align or size)
        offset = -(-offset // boundary) * boundary
        entry.parameters[name] = (offset, size)
        offset += size
    for line in re.split(r"[;\n]", _body(text, match.end())):
        line = line.strip()
        while label := re.match(r"([\w$]+):\s*", line):
            entry.labels[label[1]] = len(entry.instructions)
            line = line[label.end() :]
        if line and line not in "{}" and not line.startswith("."):
            entry.instructions.append(_parse_statement(line))
    return entry


def _body(text: str, start: int) -> str:
    """Return the text up to the brace that closes the one just before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at]
    raise ValueError("unbalanced braces")


def _parse_statement(line: str) -> Instruction:
    match = _STATEMENT.fullmatch(line)
    if match is None:
        raise ValueError(f"cannot parse {line!r}")
    negation, guard, op, rest = match.groups()
    operands = [part.strip() for part in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest)]
    return Instruction(tuple(op.split(".")), operands, guard, bool(negation))
