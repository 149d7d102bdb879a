"""What each PTX instruction does to a `ptx_machine.Machine`, for the threads that take it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from ptx_parser import WIDTHS, Instruction
from ptx_values import U64, WARP, PtxFault, Values, mask_to, sign_extend

if TYPE_CHECKING:
    from ptx_machine import Machine


def elements(operand: str) -> list[str]:
    return [part.strip() for part in operand.strip("{} ").split(",")]


def _gather(data: np.ndarray, offsets: Values, size: int) -> Values:
    """Read one little-endian integer of `size` bytes at each offset."""
    raw = data[offsets[:, None] + np.arange(size)]
    return raw.view(f"<u{size}").reshape(-1).astype(U64)


def load(m: Machine, i: Instruction, taking: Values) -> None:
    targets, size = elements(i.operands[0]), WIDTHS[i.type] // 8
    address = m.address(i.operands[1])
    if i.op[1] == "param":
        data, offsets = m.parameter_bytes, address[taking].astype(np.int64)
        if (offsets < 0).any() or (offsets + size * len(targets) > len(data) - 8).any():
            raise PtxFault("a read outside the parameters")
    else:
        region, offsets = m.locate(address, size * len(targets), taking)
        data = region.data
    for n, target in enumerate(targets):
        values = np.zeros(m.threads, U64)
        values[taking] = _gather(data, offsets + n * size, size)
        m.write(target, sign_extend(values, 8 * size) if i.type[0] == "s" else values, taking)


def store(m: Machine, i: Instruction, taking: Values) -> None:
    sources, size = elements(i.operands[1]), WIDTHS[i.type] // 8
    region, offsets = m.locate(m.address(i.operands[0]), size * len(sources), taking)
    if not region.writable:
        raise PtxFault(f"a write to {region.name}")
    columns = [m.read(source, f"b{8 * size}")[taking] for source in sources]
    raw = np.stack(columns, 1).astype(f"<u{size}").view(np.uint8)
    at = offsets[:, None] + np.arange(size * len(sources))
    region.data[at] = raw
    np.add.at(region.written, at, 1)


def move(m: Machine, i: Instruction, taking: Values) -> None:
    target, source = i.operands
    width = WIDTHS[i.type]
    if target.startswith("{"):
        parts = elements(target)
        values = m.read(source, i.type)
        for n, part in enumerate(parts):
            each = width // len(parts)
            m.write(part, mask_to(values >> U64(n * each), each), taking)
    elif source.startswith("{"):
        parts = elements(source)
        each = width // len(parts)
        total = np.zeros(m.threads, U64)
        for n, part in enumerate(parts):
            total |= m.read(part, f"b{each}") << U64(n * each)
        m.write(target, total, taking)
    else:
        m.write(target, m.read(source, i.type), taking)


def _result(m: Machine, i: Instruction, values: Values, taking: Values, width: int = 0) -> None:
    m.write(i.operands[0], mask_to(values.astype(U64), width or WIDTHS[i.type]), taking)


def _bitwise(function: Callable[..., Values]) -> Callable[[Machine, Instruction, Values], None]:
    def operation(m: Machine, i: Instruction, taking: Values) -> None:
        values = function(*(m.read(operand, i.type) for operand in i.operands[1:]))
        if i.type == "pred":
            m.write(i.operands[0], values, taking)
        else:
            _result(m, i, values, taking)

    return operation


def multiply(m: Machine, i: Instruction, taking: Values) -> None:
    """mul and mad, .lo, .hi and .wide."""
    width = WIDTHS[i.type]
    product = m.read(i.operands[1], i.type) * m.read(i.operands[2], i.type)
    if "hi" in i.op:
        if width > 32:
            raise NotImplementedError(str(i))
        product = product >> (np.int64(width) if i.type[0] == "s" else U64(width))
    result = 2 * width if "wide" in i.op else width
    if i.op[0] == "mad":
        product = product.astype(U64) + m.read(i.operands[3], f"b{result}")
    _result(m, i, product, taking, result)


def divide(m: Machine, i: Instruction, taking: Values) -> None:
    """div and rem, truncating towards zero."""
    left, right = m.read(i.operands[1], i.type), m.read(i.operands[2], i.type)
    if (right[taking] == 0).any():
        raise PtxFault("division by zero")
    right = np.where(taking, right, right.dtype.type(1))
    if i.type[0] == "s":
        quotient = np.abs(left) // np.abs(right) * np.sign(left) * np.sign(right)
    else:
        quotient = left // right
    _result(m, i, quotient if i.op[0] == "div" else left - quotient * right, taking)


def shift(m: Machine, i: Instruction, taking: Values) -> None:
    """shl and shr; a shift by the width or more leaves zeros (or signs)."""
    width, values = WIDTHS[i.type], m.read(i.operands[1], i.type)
    distance = m.read(i.operands[2], "u32")
    if i.type[0] == "s" and i.op[0] == "shr":
        return _result(m, i, values >> np.minimum(distance, U64(63)).astype(np.int64), taking)
    within = np.minimum(distance, U64(63))
    moved = values << within if i.op[0] == "shl" else values >> within
    _result(m, i, np.where(distance >= U64(width), U64(0), moved), taking)


def funnel_shift(m: Machine, i: Instruction, taking: Values) -> None:
    both = m.read(i.operands[1], "b32") | m.read(i.operands[2], "b32") << U64(32)
    distance = m.read(i.operands[3], "u32")
    distance = distance & U64(31) if "wrap" in i.op else np.minimum(distance, U64(32))
    _result(m, i, both >> distance if "r" in i.op else (both << distance) >> U64(32), taking)


COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


def compare(m: Machine, i: Instruction, taking: Values) -> None:
    left, right = m.read(i.operands[1], i.type), m.read(i.operands[2], i.type)
    values = COMPARISONS[i.op[1]](left, right)
    if len(i.op) == 4:  # setp.lt.and.u32 p, a, b, q
        join = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[i.op[2]]
        values = join(values, m.read(i.operands[3], "pred"))
    m.write(i.operands[0], values, taking)


def select(m: Machine, i: Instruction, taking: Values) -> None:
    chosen = m.predicate(i.operands[3])
    _result(m, i, np.where(chosen, *(m.read(o, i.type) for o in i.operands[1:3])), taking)


def convert(m: Machine, i: Instruction, taking: Values) -> None:
    target, source = i.op[-2], i.op[-1]
    _result(m, i, m.read(i.operands[1], source), taking, WIDTHS[target])


def ballot(m: Machine, i: Instruction, taking: Values) -> None:
    if i.op != ("vote", "sync", "ballot", "b32"):
        raise NotImplementedError(str(i))
    lanes = m.special["%laneid"]
    members = m.read(i.operands[2], "b32")
    bits = np.left_shift(U64(1), lanes)
    present = np.where(taking, bits, U64(0)).reshape(-1, WARP).sum(1, dtype=U64)
    if (np.repeat(present, WARP)[taking] != members[taking]).any():
        raise PtxFault("a vote without all of its lanes")
    yes = np.where(taking & m.predicate(i.operands[1]), bits, U64(0)).reshape(-1, WARP)
    _result(m, i, np.repeat(yes.sum(1, dtype=U64), WARP), taking)


def _field(start: Values, length: Values) -> Values:
    one = U64(1)
    return ((one << np.minimum(length, U64(63))) - one) << np.minimum(start, U64(63))


def extract_field(m: Machine, i: Instruction, taking: Values) -> None:
    start, length = (m.read(o, "u32") & U64(255) for o in i.operands[2:4])
    values = (m.read(i.operands[1], f"b{WIDTHS[i.type]}") >> start) & _field(U64(0), length)
    if i.type[0] == "s":
        if (start + length > U64(WIDTHS[i.type])).any() or (length == 0).any():
            raise NotImplementedError(str(i))
        up = (U64(64) - length).astype(np.int64)
        values = (values.astype(np.int64) << up) >> up
    _result(m, i, values, taking)


def insert_field(m: Machine, i: Instruction, taking: Values) -> None:
    start, length = (m.read(o, "u32") & U64(255) for o in i.operands[3:5])
    field = _field(start, length)
    new, old = m.read(i.operands[1], i.type), m.read(i.operands[2], i.type)
    _result(m, i, (new << start & field) | (old & ~field), taking)


def permute_bytes(m: Machine, i: Instruction, taking: Values) -> None:
    if len(i.op) != 2:
        raise NotImplementedError(str(i))
    source = m.read(i.operands[1], "b32") | m.read(i.operands[2], "b32") << U64(32)
    selectors, values = m.read(i.operands[3], "b32"), np.zeros(m.threads, U64)
    for n in range(4):
        selector = selectors >> U64(4 * n) & U64(15)
        byte = source >> ((selector & U64(7)) * U64(8)) & U64(255)
        sign = np.where(byte & U64(128), U64(255), U64(0))
        values |= np.where(selector & U64(8), sign, byte) << U64(8 * n)
    _result(m, i, values, taking)


def logic3(m: Machine, i: Instruction, taking: Values) -> None:
    a, b, c = (m.read(operand, "b32") for operand in i.operands[1:4])
    table, values = int(i.operands[4], 0), np.zeros(m.threads, U64)
    for row in range(8):
        if table >> row & 1:
            values |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    _result(m, i, values, taking)


OPERATIONS: dict[str, Callable[[Machine, Instruction, Values], None]] = {
    "ld": load,
    "st": store,
    "mov": move,
    "cvta": move,
    "add": _bitwise(np.add),
    "sub": _bitwise(np.subtract),
    "and": _bitwise(np.bitwise_and),
    "or": _bitwise(np.bitwise_or),
    "xor": _bitwise(np.bitwise_xor),
    "not": _bitwise(np.invert),
    "neg": _bitwise(lambda a: np.zeros_like(a) - a),
    "min": _bitwise(np.minimum),
    "max": _bitwise(np.maximum),
    "popc": _bitwise(np.bitwise_count),
    "mul": multiply,
    "mad": multiply,
    "div": divide,
    "rem": divide,
    "shl": shift,
    "shr": shift,
    "shf": funnel_shift,
    "setp": compare,
    "selp": select,
    "cvt": convert,
    "vote": ballot,
    "bfe": extract_field,
    "bfi": insert_field,
    "prmt": permute_bytes,
    "lop3": logic3,
}
