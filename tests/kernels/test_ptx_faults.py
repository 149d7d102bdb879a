"""Would the PTX checks notice a fault? Mutants of the shipped kernels say how many they catch.

Every mutant that survives counts as missed, although some mean the same as the original (a masked
load's unused default, for one).
"""

import functools

import pytest
import torch
from kernel_cases import Call, interpreted_triton, random_masks, same_bits
from ptx_machine import PtxFault
from ptx_mutants import mutants

from fixedcode_kernels.cuda_kernel import find_nvcc
from fixedcode_kernels.spec import make_lift

compiled = pytest.importorskip("compiled")

LIFT = make_lift(16, 512, torch.bfloat16, random_masks(16, 3), 0x1234, -1.7, 0.3, False)
IDS = torch.randint(0, 2**16, (3, 11), generator=torch.Generator().manual_seed(1))

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")
needs_triton = pytest.mark.skipif(interpreted_triton() is None, reason="triton is not installed")


def survivors(entry, run, calls, every):
    """Return (number of mutants tried, descriptions of those that no call betrays)."""
    expected = [call.expected() for call in calls]

    def caught(candidate):
        for call, want in zip(calls, expected, strict=True):
            try:
                out, _ = run(candidate, call)
            except (PtxFault, NotImplementedError):
                return True
            if not same_bits(out, want):
                return True
        return False

    assert not caught(entry), "the original must pass"
    tried = list(mutants(entry))[::every]
    return len(tried), [description for description, mutant in tried if not caught(mutant)]


def triton_calls():
    return [
        Call(IDS[:, ::2], LIFT, 1, 5),  # 15 rows: the last program is partial
        Call(IDS.t(), LIFT, 0, 2),
        Call(IDS[:1], LIFT, 2, 5),  # 5 rows: one row in the last program
    ]


def nvcc_calls():
    calls = []
    for ids in (IDS, IDS.int()):
        for hidden in (1000, 4360):  # partial last iteration; more than one unrolled loop
            calls.append(Call(ids[:, :8:2], LIFT._replace(hidden_size=hidden), 1, 3))
        for hidden in (8, *range(256, 2304, 256)):  # rows that end where an iteration would begin
            calls.append(Call(ids[:1, :1], LIFT._replace(hidden_size=hidden), 0, 1))
    return sorted(calls, key=lambda call: call.rows == 1)


@needs_triton
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_triton_mutants_are_caught(every):
    entry = compiled.triton_entry(LIFT, torch.int64)
    tried, missed = survivors(entry, compiled.run_triton, triton_calls(), every)
    assert tried >= 100
    assert len(missed) <= 0.1 * tried, missed


@needs_nvcc
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_nvcc_mutants_are_caught(every):
    run = functools.partial(compiled.run_nvcc, blocks=1)
    tried, missed = survivors(compiled.nvcc_entry(LIFT), run, nvcc_calls(), every)
    assert tried >= 50
    assert len(missed) <= 0.1 * tried, missed
