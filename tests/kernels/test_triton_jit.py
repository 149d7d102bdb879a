"""Triton's own launch path up to the compiled kernel, with a stand-in for the GPU's driver.

The ahead-of-time tests choose types and alignment themselves; here Triton derives them from the
tensors and numbers of a call, as it will on a GPU.
"""

import re

import pytest
import torch
from kernel_cases import Call, copy_of_triton_backend, interpreted_triton, random_masks, same_bits
from ptx_parser import parse

from fixedcode_kernels.spec import make_lift

compiled = pytest.importorskip("compiled")
pytestmark = pytest.mark.skipif(interpreted_triton() is None, reason="triton is not installed")


class StandInDriver:
    """What Triton's launcher asks a driver before it loads a kernel."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def compile_call(monkeypatch):
    from triton.runtime import driver

    backend = copy_of_triton_backend(interpret=False)

    def compile_only(call):
        positional, constants = backend.arguments(
            call.ids, call.output(), call.lift, call.seq_start
        )
        return backend.token_code_kernel.warmup(
            *positional, **constants, num_warps=backend.NUM_WARPS, grid=(1,)
        )

    monkeypatch.setattr(driver, "_active", StandInDriver(), raising=True)
    return compile_only


def call_of(ids, seq_start=0):
    lift = make_lift(16, 2048, torch.bfloat16, random_masks(16, 9), 3, -1.7, 0.3, False)
    return Call(ids, lift, seq_start, ids.size(1) - seq_start)


@pytest.mark.filterwarnings("ignore")
def test_launch_path_compiles_to_wide_stores_and_right_values(compile_call):
    call = call_of(torch.randint(0, 2**16, (3, 5)))
    ptx = compile_call(call).asm["ptx"]
    assert set(re.findall(r"st\.global[.\w]*", ptx)) == {"st.global.v4.b32"}
    (entry,) = parse(ptx).values()
    out, _ = compiled.run_triton(entry, call)
    assert same_bits(out, call.expected())


@pytest.mark.filterwarnings("ignore")
def test_one_kernel_serves_all_shapes_and_strides(compile_call):
    """A value of 1 or a multiple of 16 must not start another compilation."""
    first = compile_call(call_of(torch.zeros(3, 5, dtype=torch.int64)))
    for ids, seq_start in (
        (torch.zeros(1, 1, dtype=torch.int64), 0),
        (torch.zeros(16, 32, dtype=torch.int64), 16),
        (torch.zeros(4, 7, dtype=torch.int64).t(), 1),
    ):
        assert compile_call(call_of(ids, seq_start)) is first
