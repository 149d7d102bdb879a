"""The PTX that Triton and nvcc emit for sm_90, executed on the CPU: equal to the reference.

The interpreter has only the call's own tensors as memory, so that any access beside them stops the
run, and `compiled` demands that every byte of the output is written exactly once.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import Call, calls, interpreted_triton, random_masks, same_bits

from fixedcode_kernels import native
from fixedcode_kernels.cuda_kernel import find_nvcc
from fixedcode_kernels.spec import make_lift

pytest.importorskip("numpy", minversion="2.0")
compiled = pytest.importorskip("compiled")

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")
needs_triton = pytest.mark.skipif(interpreted_triton() is None, reason="triton is not installed")

#        K   hidden  dtype           affine  interleave
LIFTS = [
    (16, 2048, torch.bfloat16, False, False),  # the shipped case
    (16, 2048, torch.bfloat16, True, False),
    (16, 2048, torch.float32, True, False),  # two blocks of words: a loop
    (16, 1024, torch.float16, False, True),
    (17, 2176, torch.bfloat16, True, False),  # K that does not divide a block: a loop that rotates
    (17, 50, torch.bfloat16, False, False),  # rows off 16 bytes, partial tile
    (5, 65, torch.float16, True, False),  # odd width: 16-bit stores
    (31, 124, torch.float32, True, True),
    (32, 4096, torch.bfloat16, True, False),  # every bit of a word in use
    (32, 2048, torch.float32, False, False),
    (32, 96, torch.float16, True, True),
    (32, 37, torch.bfloat16, True, False),  # odd width, partial tile
    (1, 8, torch.bfloat16, False, False),
]


def make(k, hidden, dtype, affine, interleave):
    masks = random_masks(k, 3) if affine else ()
    return make_lift(k, hidden, dtype, masks, (1 << k) // 3, -1.7, 0.3, interleave)


def random_ids(batch, length, dtype):
    generator = torch.Generator().manual_seed(batch * length)
    return torch.randint(-(2**63), 2**63 - 1, (batch, length), generator=generator).to(dtype)


@needs_triton
@pytest.mark.parametrize("id_type", [torch.int64, torch.int32])
@pytest.mark.parametrize("arguments", LIFTS)
def test_triton_ptx(arguments, id_type):
    lift = make(*arguments)
    entry = compiled.triton_entry(lift, id_type)
    for ids in (random_ids(3, 8, id_type), random_ids(7, 3, id_type).t()[:, ::2]):
        call = Call(ids, lift, 1, 3)
        out, _ = compiled.run_triton(entry, call)
        assert same_bits(out, call.expected())


@needs_triton
def test_triton_ptx_with_64_bit_strides():
    lift = make(*LIFTS[1])
    entry = compiled.triton_entry(lift, torch.int64, "i64")
    call = Call(random_ids(3, 8, torch.int64).t(), lift, 0, 3)
    out, _ = compiled.run_triton(entry, call, "i64")
    assert same_bits(out, call.expected())


@needs_nvcc
@pytest.mark.parametrize("id_type", [torch.int64, torch.int32])
@pytest.mark.parametrize("arguments", LIFTS)
def test_nvcc_ptx(arguments, id_type):
    lift = make(*arguments)
    for ids in (random_ids(3, 8, id_type), random_ids(7, 3, id_type).t()[:, ::2]):
        call = Call(ids, lift, 1, 3)
        out, _ = compiled.run_nvcc(compiled.nvcc_entry(lift), call)
        assert same_bits(out, call.expected())


@needs_nvcc
@settings(max_examples=40, deadline=None)
@given(calls(), st.integers(1, 3))
def test_nvcc_ptx_on_random_calls_and_grids(call, blocks):
    out, _ = compiled.run_nvcc(compiled.nvcc_entry(call.lift), call, blocks)
    assert same_bits(out, call.expected())


@pytest.mark.slow
@needs_nvcc
@settings(max_examples=600, deadline=None)
@given(calls(), st.integers(1, 3))
def test_nvcc_ptx_at_length(call, blocks):
    out, _ = compiled.run_nvcc(compiled.nvcc_entry(call.lift), call, blocks)
    assert same_bits(out, call.expected())


@pytest.mark.slow
@needs_triton
@settings(max_examples=100, deadline=None)
@given(calls())
def test_triton_ptx_at_length(call):
    entry = compiled.triton_entry(call.lift, call.ids.dtype)
    out, _ = compiled.run_triton(entry, call)
    assert same_bits(out, call.expected())


@needs_triton
@pytest.mark.parametrize(
    ("k", "hidden", "dtype", "affine", "budget"),
    [
        (16, 2048, torch.bfloat16, False, 14),
        (16, 2048, torch.bfloat16, True, 24),
        (17, 2176, torch.bfloat16, False, 56),  # a K that does not divide the words of a warp
        (17, 2176, torch.bfloat16, True, 56),
        (18, 2304, torch.float32, False, 56),
        (32, 4096, torch.bfloat16, False, 14),
        (32, 4096, torch.bfloat16, True, 24),
        (32, 4096, torch.float32, True, 24),
    ],
)
def test_instructions_executed_per_store(k, hidden, dtype, affine, budget):
    """Executed, not counted in the listing: about 56 fit beside a store at full bandwidth."""
    lift = make(k, hidden, dtype, affine, False)
    call = Call(random_ids(4, 8, torch.int64), lift, 0, 8)
    _, machine = compiled.run_triton(compiled.triton_entry(lift, torch.int64), call)
    stores = call.rows * -(-hidden * dtype.itemsize // 512)  # 32 lanes of 16 bytes
    assert machine.executed["st"] == stores
    assert sum(machine.executed.values()) <= budget * stores


@pytest.mark.parametrize("kind", [pytest.param("nvcc", marks=needs_nvcc), "triton"])
@pytest.mark.parametrize(
    ("rows", "hidden", "stride"),
    [
        (524_297, 4096, 1),  # 2^31 elements and more, the last row alone in its block
        (262_153, 8192, 1),
        (1_048_585, 4096, 1),  # and 2^31 32-bit words
        (70_001, 64, 1),
        (2**27 + 1, 16, 1),  # 2^32 lanes when a warp writes a row
        (native.MAX_ROWS - 7, 16, 1),
        (9, 70_000, 1),
        (9, 64, 2**33 + 1),  # ids further apart than 32 bits reach
    ],
)
def test_offsets_beyond_32_bits(kind, rows, hidden, stride):
    if kind == "triton" and interpreted_triton() is None:
        pytest.skip("triton is not installed")
    lift = make_lift(16, hidden, torch.bfloat16, random_masks(16, 1), 77, 1.0, 0.0, False)
    ids = torch.tensor([54321])
    out = compiled.run_last_block(kind, lift, ids, rows, stride)
    assert same_bits(out, Call(ids.view(1, 1), lift, 0, 1).expected().view(1, hidden))
