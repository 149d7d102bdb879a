"""Small faults injected into PTX, one at a time, to see whether the checks catch them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from ptx_parser import WIDTHS, Entry, Instruction

NEIGHBOUR = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq"}
SWAPPED = {
    "add": "sub",
    "sub": "add",
    "and": "or",
    "or": "and",
    "xor": "or",
    "shl": "shr",
    "shr": "shl",
    "div": "rem",
    "rem": "div",
    "min": "max",
    "max": "min",
}
_NUMBER = re.compile(r"-?(0x[0-9a-fA-F]+|\d+)")


def mutants(entry: Entry) -> Iterator[tuple[str, Entry]]:
    """Yield every single-instruction mutant of `entry` with a description."""
    for at, instruction in enumerate(entry.instructions):
        for changed in _mutations(instruction):
            instructions = list(entry.instructions)
            instructions[at] = changed
            yield (
                f"{at}: {instruction}  ->  {changed}",
                dataclasses.replace(entry, instructions=instructions),
            )


def _mutations(i: Instruction) -> Iterator[Instruction]:
    op, operands = i.op, i.operands
    if i.guard:
        yield dataclasses.replace(i, negated=not i.negated)
    if op[0] == "setp":
        yield dataclasses.replace(i, op=(op[0], NEIGHBOUR[op[1]], *op[2:]))
    if op[0] in SWAPPED and i.type != "pred":
        swapped = SWAPPED[op[0]]
        types = [f"b{part[1:]}" if swapped in ("or", "and") else part for part in op[1:]]
        yield dataclasses.replace(i, op=(swapped, *types))
    if op[0] == "selp":
        yield _with_operands(i, [operands[0], operands[2], operands[1], operands[3]])
    if op[0] == "st":
        values = [part.strip() for part in operands[1].strip("{} ").split(",")]
        rotated = "{" + ", ".join(values[1:] + values[:1]) + "}"
        size = WIDTHS[i.type] // 8 * len(values)
        if len(set(values)) > 1:
            yield _with_operands(i, [operands[0], rotated])
        yield _with_operands(i, [_further(operands[0], size), operands[1]])
        yield dataclasses.replace(i, op=("mov", "b32"), operands=["_", "0"])  # the store is lost
    elif op[0] == "ld":
        size = WIDTHS[i.type] // 8
        yield _with_operands(i, [operands[0], _further(operands[1], size)])
    elif op[0] != "bra" and len(operands) > 1 and _NUMBER.fullmatch(operands[-1]):
        number = int(operands[-1], 0)
        lowest_bit = number & -number  # a step that shows: 248 becomes 256, 3 becomes 4
        yield _with_operands(i, [*operands[:-1], str(number + (lowest_bit or 1))])


def _with_operands(i: Instruction, operands: list[str]) -> Instruction:
    return dataclasses.replace(i, operands=operands)


def _further(address: str, size: int) -> str:
    base, _, offset = address.strip("[] ").partition("+")
    return f"[{base.strip()}+{int(offset or '0', 0) + size}]"
