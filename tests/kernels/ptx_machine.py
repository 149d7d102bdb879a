"""Executes the integer subset of PTX on CPU memory, all threads of a grid at once in numpy.

What real hardware would let pass unseen stops the run here: an access outside the tensors given, a
misaligned access, a write to a read-only tensor, a predicate never written, a division by zero, a
vote that not all of its lanes take part in, a loop without end. Bytes written are counted.
Compilers may read other registers before they write them, where the value cannot matter: such
registers hold noise.

It proves what the PTX means, not what the assembler makes of it, nor memory ordering, nor speed.
Threads that diverge are run lowest program counter first, so they meet again in structured code.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from ptx_operations import OPERATIONS
from ptx_parser import WIDTHS, Entry
from ptx_values import U64, WARP, PtxFault, Values, mask_to, sign_extend


@dataclass
class Region:
    """Memory that the kernel may touch: its address, its bytes, and how often each was written."""

    name: str
    address: int
    data: np.ndarray
    writable: bool = False

    def __post_init__(self) -> None:
        self.written = np.zeros(len(self.data), np.uint8)


class Machine:
    """Runs one entry over a one-dimensional grid."""

    def __init__(self, entry: Entry, regions: list[Region], max_steps: int = 200_000) -> None:
        self.entry, self.regions, self.max_steps = entry, regions, max_steps
        self.executed: Counter[str] = Counter()  # warp instructions by opcode

    def run(self, grid: int, block: int, arguments: list[bytes], first_block: int = 0) -> None:
        """Execute the blocks of a grid from `first_block` on.

        `arguments` are the kernel's parameters as little-endian bytes.
        """
        self._load_parameters(arguments)
        self.threads = (grid - first_block) * block
        thread = np.arange(self.threads)
        self.special = {
            "%tid.x": (thread % block).astype(U64),
            "%ctaid.x": (thread // block + first_block).astype(U64),
            "%ntid.x": np.full(self.threads, block, U64),
            "%nctaid.x": np.full(self.threads, grid, U64),
            "%laneid": (thread % WARP).astype(U64),
        }
        self.registers: dict[str, Values] = {}
        self.noise = np.random.default_rng(1)
        waiting = {0: np.ones(self.threads, bool)}
        for _ in range(self.max_steps):
            if not waiting:
                return
            pc = min(waiting)
            active = waiting.pop(pc)
            for target, threads in self._step(pc, active):
                if threads.any():
                    waiting[target] = waiting[target] | threads if target in waiting else threads
        raise PtxFault("the program does not end")

    def _load_parameters(self, arguments: list[bytes]) -> None:
        places = list(self.entry.parameters.values())
        size = sum(places[-1])
        self.parameter_bytes = np.zeros(size + 8, np.uint8)
        for (offset, length), argument in zip(places, arguments, strict=True):
            if len(argument) != length:
                raise PtxFault(f"a parameter of {length} bytes got {len(argument)}")
            self.parameter_bytes[offset : offset + length] = np.frombuffer(argument, np.uint8)

    def _step(self, pc: int, active: Values) -> list[tuple[int, Values]]:
        """Execute one instruction for the active threads; return who goes where."""
        if pc >= len(self.entry.instructions):
            raise PtxFault("ran past the end")
        instruction = self.entry.instructions[pc]
        self.executed[instruction.op[0]] += int(active.reshape(-1, WARP).any(1).sum())
        taking = active
        if instruction.guard:
            taking = active & (self.predicate(instruction.guard) ^ instruction.negated)
        if instruction.op[0] == "bra":
            return [
                (pc + 1, active & ~taking),
                (self.entry.labels[instruction.operands[0]], taking),
            ]
        if instruction.op[0] in ("ret", "exit"):
            return [(pc + 1, active & ~taking)]
        if taking.any():
            OPERATIONS[instruction.op[0]](self, instruction, taking)
        return [(pc + 1, active)]

    # Operands

    def predicate(self, name: str) -> Values:
        if name not in self.registers:
            raise PtxFault(f"{name} is read before it is written")
        return self.registers[name]

    def read(self, operand: str, kind: str) -> Values:
        """Return an operand as `kind`: uint64 zero-extended, or int64 for signed kinds."""
        if kind == "pred" and operand.startswith("%"):
            return self.predicate(operand)
        if operand in self.special:
            values = self.special[operand]
        elif operand.startswith("%"):
            values = self.registers.get(operand)
            if values is None:
                values = self.noise.integers(0, 2**64, self.threads, dtype=U64)
        elif operand in self.entry.parameters:
            values = np.full(self.threads, self.entry.parameters[operand][0], U64)
        else:
            values = np.full(self.threads, int(operand.rstrip("U"), 0) & (2**64 - 1), U64)
        if kind == "pred":
            return values.astype(bool)
        width = WIDTHS[kind]
        return sign_extend(values, width) if kind[0] == "s" else mask_to(values, width)

    def write(self, register: str, values: Values, taking: Values) -> None:
        if register == "_":
            return
        values = values if values.dtype == bool else values.astype(U64)
        if not taking.all() and register in self.registers:
            values = np.where(taking, values, self.registers[register])
        self.registers[register] = values

    def address(self, operand: str) -> Values:
        base, _, offset = operand.strip("[] ").partition("+")
        address = self.read(base.strip(), "b64")
        return address + np.full(1, int(offset or "0", 0) & (2**64 - 1), U64)

    def locate(self, address: Values, size: int, taking: Values) -> tuple[Region, Values]:
        """Return the region that all the taking threads access, and their byte offsets in it."""
        wanted = address[taking]
        if (wanted % U64(size)).any():
            raise PtxFault(f"misaligned access of {size} bytes")
        for region in self.regions:
            offsets = wanted - U64(region.address)  # wraps around below the region
            inside = (offsets < U64(len(region.data))) & (
                offsets + U64(size) <= U64(len(region.data))
            )
            if inside.all():
                return region, offsets.astype(np.int64)
        raise PtxFault("an access outside the tensors")
