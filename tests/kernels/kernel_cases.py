"""Random calls of the op for the equality tests, and the backends that run on a CPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import sys
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from fixedcode_kernels import build, native, reference
from fixedcode_kernels.spec import MAX_BITS, Lift, make_lift

GUARD = 4096
POISON = 0xA5
INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}
HALF_AND_SINGLE = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Call:
    """ids [b, s] with any strides, and what to make of them."""

    ids: torch.Tensor
    lift: Lift
    seq_start: int
    seq_length: int

    @property
    def rows(self) -> int:
        """Tokens in the call."""
        return self.seq_length * self.ids.size(0)

    def output(self) -> torch.Tensor:
        """Return an output whose every byte is poisoned, between guards for `assert_guards`."""
        shape = (self.seq_length, self.ids.size(0), self.lift.hidden_size)
        size = torch.Size(shape).numel() * self.lift.dtype.itemsize
        storage = torch.full((GUARD + size + GUARD,), POISON, dtype=torch.uint8)
        return storage[GUARD : GUARD + size].view(self.lift.dtype).view(shape)

    def expected(self) -> torch.Tensor:
        out = self.output()
        reference.fill(self.ids, out, self.lift, self.seq_start)
        return out


def assert_guards(out: torch.Tensor) -> None:
    """Assert that nothing was written beside an output that `Call.output` made."""
    before = torch.empty(0, dtype=torch.uint8).set_(out.untyped_storage())
    guards = torch.cat((before[:GUARD], before[-GUARD:]))
    assert (guards == POISON).all(), "bytes beside the output were written"


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare bit patterns, so that -0.0 differs from 0.0."""
    integer = INTEGER[left.element_size()]
    return torch.equal(left.view(integer), right.view(integer))


def random_masks(k: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 1 << k, (k,), generator=generator).tolist())


@st.composite
def lifts(draw, dtypes=HALF_AND_SINGLE) -> Lift:
    k = draw(st.one_of(st.sampled_from((16, 32)), st.integers(1, MAX_BITS)))
    dtype = draw(st.sampled_from(dtypes))
    interleave = draw(st.booleans())
    if interleave:
        hidden = k * draw(st.integers(1, 20))
    else:
        hidden = draw(st.one_of(st.integers(1, 300), st.sampled_from((256, 512, 1024))))
    affine = draw(st.booleans())
    masks = random_masks(k, draw(st.integers(0, 2**32))) if affine else ()
    scale, offset = draw(
        st.sampled_from(((1.0, 0.0), (2.0, -1.0), (-1.7, 0.3), (0.0, -0.0), (1e30, 1.0)))
    )
    shift = draw(st.integers(0, (1 << k) - 1))
    return make_lift(k, hidden, dtype, masks, shift, scale, offset, interleave)


@st.composite
def id_tensors(draw) -> torch.Tensor:
    """ids [b, s], also sliced, transposed, expanded, with an offset; also outside every code."""
    batch, length = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    dtype = draw(st.sampled_from((torch.int64, torch.int32)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    layout = draw(st.sampled_from(("plain", "transposed", "stepped", "shifted", "expanded")))
    shape = {
        "plain": (batch, length),
        "transposed": (length, batch),
        "stepped": (2 * batch, 2 * length),
        "shifted": (batch, length + 1),
        "expanded": (1, length),
    }[layout]
    base = torch.randint(-(2**63), 2**63 - 1, shape, generator=generator).to(dtype)
    return {
        "plain": lambda: base,
        "transposed": base.t,
        "stepped": lambda: base[::2, ::2],
        "shifted": lambda: base[:, 1:],
        "expanded": lambda: base.expand(batch, length),
    }[layout]()


@st.composite
def calls(draw, dtypes=HALF_AND_SINGLE) -> Call:
    ids = draw(id_tensors())
    start = draw(st.integers(0, ids.size(1) - 1))
    length = draw(st.integers(1, ids.size(1) - start))
    return Call(ids, draw(lifts(dtypes)), start, length)


@functools.cache
def emulated_cuda():
    """Return the launcher of the CUDA kernel's host build, or None without a C++ compiler."""
    compiler = build.find_compiler("CXX", "g++", "clang++", "c++")
    if compiler is None:
        return None
    flags = ["-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    step = [*flags, "{src}/token_code_emulate.cpp", "-o", "{out}"]
    library = ctypes.CDLL(str(build.build_library("token_code_emulate", compiler, [step])))
    library.fc_emulate_fill.restype = None
    library.fc_emulate_fill.argtypes = (
        ctypes.c_void_p,
        *native.CALL_ARGUMENTS,
        ctypes.c_uint32,
    )
    return library


def emulate_fill(call: Call, out: torch.Tensor, warps: int) -> None:
    """Run the CUDA kernel's body on the host with a grid of `warps` warps."""
    emulated_cuda().fc_emulate_fill(
        native.code_pointer(call.lift)[0],
        call.ids.data_ptr(),
        out.data_ptr(),
        *call.ids.stride(),
        call.seq_start,
        call.ids.size(0),
        call.rows,
        call.ids.element_size(),
        warps,
    )


def copy_of_triton_backend(interpret: bool):
    """Return the Triton backend's module, loaded anew: its kernel has a cache of its own.

    With `interpret` its kernel runs in Triton's interpreter, on CPU tensors.
    """
    from triton import knobs

    from fixedcode_kernels import triton_kernel

    spec = importlib.util.spec_from_file_location("copy_of_triton_kernel", triton_kernel.__file__)
    module = importlib.util.module_from_spec(spec)
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, knobs.runtime, "interpret", knobs.runtime.interpret)
        knobs.runtime.interpret = interpret
        sys.modules[spec.name] = module  # Triton looks a kernel's module up by name
        stack.callback(sys.modules.pop, spec.name)
        spec.loader.exec_module(module)
    return module


@functools.cache
def interpreted_triton():
    """Return the Triton backend's module with its kernel in Triton's interpreter, or None."""
    try:
        return copy_of_triton_backend(interpret=True)
    except ImportError:
        return None
