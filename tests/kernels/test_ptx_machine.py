"""The PTX interpreter itself: results worked out by hand, and every fault that it must report."""

import struct

import numpy as np
import pytest
from ptx_machine import Machine, PtxFault, Region
from ptx_parser import parse

OUT, IN = 0x10000, 0x20000


def run(body, *, threads=32, out_bytes=128, source=(), grid=1):
    """Run `body` with %rd1 = out + 4 * thread, %r1 = thread; return the output as uint32."""
    text = f"""
    .visible .entry k(.param .u64 k_param_0, .param .u64 k_param_1)
    {{
        .reg .b32 %r<99>;
        ld.param.u64 %rd8, [k_param_0];
        ld.param.u64 %rd9, [k_param_1];
        mov.u32 %r90, %ctaid.x;
        mov.u32 %r91, %ntid.x;
        mov.u32 %r92, %tid.x;
        mad.lo.s32 %r1, %r90, %r91, %r92;
        mul.wide.u32 %rd7, %r1, 4;
        add.s64 %rd1, %rd8, %rd7;
        {body}
        ret;
    }}"""
    out = Region("out", OUT, np.zeros(out_bytes, np.uint8), writable=True)
    source = Region("in", IN, np.array(source, np.uint32).view(np.uint8))
    machine = Machine(parse(text)["k"], [out, source], max_steps=500)
    machine.run(grid, threads, [struct.pack("<Q", OUT), struct.pack("<Q", IN)])
    run.region, run.machine = out, machine
    return out.data.view(np.uint32)


# (instructions that leave the result in %r2, the result for thread 5)
RESULTS = [
    ("add.s32 %r2, %r1, -7;", 0xFFFFFFFE),
    ("sub.s32 %r2, 3, %r1;", 0xFFFFFFFE),
    ("mul.lo.s32 %r2, %r1, 0x40000001;", 0x40000005),
    ("mul.hi.u32 %r2, %r1, 0x80000000;", 2),
    ("mov.b32 %r3, -2; mul.wide.s32 %rd2, %r3, %r1; shr.u64 %rd3, %rd2, 32; cvt.u32.u64 %r2, %rd3;",
     0xFFFFFFFF),
    ("mad.lo.s32 %r2, %r1, 3, 4;", 19),
    ("mov.b32 %r3, -7; max.u32 %r4, %r1, 1; div.s32 %r2, %r3, %r4;", 0xFFFFFFFF),
    ("mov.b32 %r3, -7; max.u32 %r4, %r1, 1; rem.s32 %r2, %r3, %r4;", 0xFFFFFFFE),
    ("mov.b32 %r3, -7; max.u32 %r4, %r1, 1; div.u32 %r2, %r3, %r4;", 858993457),
    ("shl.b32 %r2, %r1, 31;", 0x80000000),
    ("shl.b32 %r2, %r1, 32;", 0),
    ("mov.b32 %r3, -8; shr.s32 %r2, %r3, 1;", 0xFFFFFFFC),
    ("mov.b32 %r3, -8; shr.u32 %r2, %r3, 1;", 0x7FFFFFFC),
    ("not.b32 %r2, %r1;", 0xFFFFFFFA),
    ("neg.s32 %r2, %r1;", 0xFFFFFFFB),
    ("popc.b32 %r2, %r1;", 2),
    ("min.s32 %r2, %r1, -1;", 0xFFFFFFFF),
    ("max.u32 %r2, %r1, -1;", 0xFFFFFFFF),
    ("mov.b32 %r3, 0xABCD1234; bfe.u32 %r2, %r3, 8, 12;", 0xD12),
    ("mov.b32 %r3, 0xABCD1234; bfe.s32 %r2, %r3, 20, 8;", 0xFFFFFFBC),
    ("mov.b32 %r3, 0xFFFFFFFF; bfi.b32 %r2, %r1, %r3, 4, 8;", 0xFFFFF05F),
    ("mov.b32 %r3, 0x44332211; mov.b32 %r4, 0x88776655; prmt.b32 %r2, %r3, %r4, 0x7410;",
     0x88552211),
    ("mov.b32 %r3, 12; mov.b32 %r4, 10; lop3.b32 %r2, %r1, %r3, %r4, 0x96;", 5 ^ 12 ^ 10),
    ("mov.b32 %r3, 0x80000000; shf.l.wrap.b32 %r2, %r3, %r1, 1;", 11),
    ("setp.lt.u32 %p1, %r1, 5; selp.b32 %r2, 1, 2, %p1;", 2),
    ("setp.le.s32 %p1, -1, %r1; selp.b32 %r2, 1, 2, %p1;", 1),
    ("setp.le.u32 %p1, -1, %r1; selp.b32 %r2, 1, 2, %p1;", 2),
    ("setp.eq.s32 %p1, %r1, 5; mov.b32 %r2, 9; @!%p1 mov.b32 %r2, 8;", 9),
    ("mov.b32 %r3, 0xFF85; cvt.s32.s8 %r2, %r3;", 0xFFFFFF85),
    ("mov.b32 %r3, 0xFF85; cvt.u32.u8 %r2, %r3;", 0x85),
    ("mov.b32 %r3, 0x00020001; mov.b32 {%rs1, %rs2}, %r3; mov.b32 %r2, {%rs2, %rs1};",
     0x00010002),
    ("ld.global.u32 %r2, [%rd9+8];", 30),
    ("ld.global.v2.u32 {%r3, %r2}, [%rd9+8];", 40),
    ("setp.gt.u32 %p1, %r1, 29; vote.sync.ballot.b32 %r2, %p1, -1;", 0xC0000000),
    # a loop that counts to the thread's number, and a branch that parts the threads
    ("mov.b32 %r2, 0; $top: setp.ge.u32 %p1, %r2, %r1; @%p1 bra $end; add.s32 %r2, %r2, 1;"
     "bra $top; $end:", 5),
    ("mov.b32 %r2, 1; setp.ne.s32 %p1, %r1, 5; @%p1 bra $skip; mov.b32 %r2, 7; $skip:", 7),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), RESULTS)
def test_results(body, expected):
    out = run(body + " st.global.u32 [%rd1], %r2;", source=(10, 20, 30, 40))
    assert out[5] == expected


FAULTS = [
    ("st.global.u32 [%rd1+4], %r1;", "outside the tensors"),
    ("st.global.u32 [%rd1+-4], %r1;", "outside the tensors"),
    ("ld.global.u32 %r2, [%rd9+16];", "outside the tensors"),
    ("st.global.u32 [%rd1+2], %r1;", "misaligned"),
    ("st.global.v4.u32 [%rd8+8], {%r1, %r1, %r1, %r1};", "misaligned"),
    ("st.global.u32 [%rd9], %r1;", "a write to in"),
    ("selp.b32 %r2, 1, 2, %p9;", "read before it is written"),
    ("@%p9 bra $end; $end:", "read before it is written"),
    ("div.u32 %r2, 1, %r1;", "division by zero"),
    ("$top: bra $top;", "does not end"),
    ("ld.param.u32 %r2, [k_param_1+8];", "outside the parameters"),
    ("setp.gt.u32 %p1, %r1, 9; @%p1 bra $end; vote.sync.ballot.b32 %r2, %p1, -1; $end:",
     "without all of its lanes"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message"), FAULTS)
def test_faults(body, message):
    with pytest.raises(PtxFault, match=message):
        run(body, source=(10, 20, 30, 40))


def test_unknown_instructions_are_refused():
    with pytest.raises(KeyError, match="sin"):
        run("sin.approx.f32 %r2, %r1;")


def test_counts_bytes_written_and_warp_instructions():
    out = run("st.global.u16 [%rd1], %r1;", threads=64, out_bytes=256)
    assert out.tolist() == list(range(64))
    assert run.region.written.tolist() == [1, 1, 0, 0] * 64
    assert run.machine.executed["st"] == 2  # two warps
    run("st.global.u8 [%rd8], %r1;")
    assert run.region.written[0] == 32  # every thread wrote the same byte


def test_registers_never_written_hold_noise():
    out = run("st.global.u32 [%rd1], %r33;")
    assert len(set(out.tolist())) > 30
