"""Every backend equals the reference bit for bit, on random calls."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    Call,
    assert_guards,
    calls,
    emulate_fill,
    interpreted_triton,
    random_masks,
    same_bits,
)

from fixedcode_kernels import cpu, table
from fixedcode_kernels.spec import MAX_BITS, make_lift

SOME = settings(max_examples=40, deadline=None)
FEW = settings(max_examples=120, deadline=None)
MANY = settings(max_examples=2000, deadline=None)
ALL_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

needs_compiler = pytest.mark.skipif(
    cpu.unavailable() is not None, reason=f"C++ kernel: {cpu.unavailable()}"
)
needs_triton = pytest.mark.skipif(interpreted_triton() is None, reason="triton is not installed")


def assert_equal(fill, call):
    out = call.output()
    fill(call, out)
    assert same_bits(out, call.expected())
    assert_guards(out)


def fill_table(call, out):
    table.fill(call.ids, out, call.lift, call.seq_start)


def fill_cpu(call, out, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        cpu.fill(call.ids, out, call.lift, call.seq_start)
    finally:
        torch.set_num_threads(before)


def fill_triton(call, out, block_rows):
    interpreted_triton().launch(
        call.ids, out, call.lift, call.seq_start, BLOCK_ROWS=block_rows, BLOCK_WORDS=256
    )


@SOME
@given(calls(ALL_DTYPES))
def test_table(call):
    table._codes.cache_clear()  # the caches are by lift: with a new one each time they only grow
    table._values.cache_clear()
    assert_equal(fill_table, call)


@needs_compiler
@FEW
@given(calls(ALL_DTYPES), st.sampled_from((1, 2)))
def test_cpu_kernel(call, threads):
    assert_equal(functools.partial(fill_cpu, threads=threads), call)


@needs_compiler
@FEW
@given(calls(), st.integers(1, 40))
def test_cuda_source_on_the_host(call, warps):
    assert_equal(functools.partial(emulate_fill, warps=warps), call)


@needs_triton
@FEW
@given(calls(), st.sampled_from((1, 4, 32)))
def test_triton_in_its_interpreter(call, block_rows):
    assert_equal(functools.partial(fill_triton, block_rows=block_rows), call)


@pytest.mark.slow
@needs_compiler
@needs_triton
@MANY
@given(calls(), st.integers(1, 40))
def test_all_backends_at_length(call, warps):
    assert_equal(functools.partial(fill_cpu, threads=2), call)
    assert_equal(functools.partial(emulate_fill, warps=warps), call)
    assert_equal(functools.partial(fill_triton, block_rows=32), call)


def many_code_sizes(dtype, hidden):
    """One call per K, with and without an affine map."""
    generator = torch.Generator().manual_seed(7)
    for k in (1, 2, 3, 5, 8, 11, 15, 16, 17, 24, 30, 31, 32):
        for masks in ((), random_masks(k, k)):
            lift = make_lift(k, hidden, dtype, masks, (1 << k) // 3, 2.0, -1.0, False)
            ids = torch.randint(0, 1 << k, (2, 37), generator=generator)
            yield Call(ids, lift, 5, 32)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_cpu_kernel_threads_at_many_code_sizes(dtype):
    for call in many_code_sizes(dtype, 2056):  # above the size where threads start
        assert_equal(functools.partial(fill_cpu, threads=2), call)


@needs_compiler
def test_cpu_kernel_encodes_many_rows_by_tables():
    generator = torch.Generator().manual_seed(4)
    for k in range(1, MAX_BITS + 1):
        lift = make_lift(k, k, torch.float32, random_masks(k, k), (1 << k) // 3, 1.0, 0.0, False)
        ids = torch.randint(-(2**31), 2**31, (1, 500), generator=generator)
        assert_equal(functools.partial(fill_cpu, threads=1), Call(ids, lift, 0, 500))


@needs_compiler
@pytest.mark.parametrize("k", [16, 17, 31, 32])
def test_cpu_kernel_on_an_output_larger_than_the_caches(k):
    lift = make_lift(k, 2048, torch.float32, random_masks(k, 1), 9, 2.0, -1.0, False)
    ids = torch.randint(-(2**31), 2**31, (4, 1700), generator=torch.Generator().manual_seed(3))
    assert_equal(functools.partial(fill_cpu, threads=2), Call(ids, lift, 0, 1700))  # 53 MiB


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_cuda_source_at_many_code_sizes(dtype):
    for call in many_code_sizes(dtype, 2056):
        assert_equal(functools.partial(emulate_fill, warps=7), call)


OFF_ALIGNMENT = {
    "table": fill_table,
    "cpu": pytest.param(functools.partial(fill_cpu, threads=1), marks=needs_compiler),
    "cuda": pytest.param(functools.partial(emulate_fill, warps=3), marks=needs_compiler),
    "triton": pytest.param(functools.partial(fill_triton, block_rows=4), marks=needs_triton),
}


@pytest.mark.parametrize("fill", OFF_ALIGNMENT.values(), ids=OFF_ALIGNMENT)
def test_output_off_any_alignment(fill):
    lift = make_lift(16, 64, torch.bfloat16, (), 0, 1.0, 0.0, False)
    call = Call(torch.arange(6).view(2, 3), lift, 0, 3)
    storage = torch.full((3 * 2 * 64 + 2,), 7.0, dtype=torch.bfloat16)
    out = storage[1:-1].view(3, 2, 64)
    assert out.data_ptr() % 4
    fill(call, out)
    assert same_bits(out, call.expected())
    assert storage[0] == storage[-1] == 7.0  # nothing beside the output was touched
