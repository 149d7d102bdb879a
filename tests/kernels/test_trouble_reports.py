"""Faults reported of other tools' kernels, each as the smallest input that would show it here.

Those that need a GPU run in test_gpu.py; their arithmetic past 2^31 is executed in test_ptx.py.
"""

import contextlib
import mmap
import sys
import types

import pytest
import torch

from fixedcode_kernels import (
    CodeSpec,
    check,
    cuda_kernel,
    dispatch,
    native,
    op,
    token_code_embedding,
    use_backend,
)

CODE = CodeSpec(vocab_size=2**16, num_bits=16, row_masks=tuple(3 << j & 0xFFFF for j in range(16)))
CPU_BACKENDS = [name for name in ("cpu", "table") if dispatch._unavailable(name, "cpu") is None]


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("name", [name for name in check.CHECKS if name not in check.GPU_ONLY])
def test_the_packages_own_checks(backend, name):
    with use_backend(backend):
        check.CHECKS[name](torch.device("cpu"))


@pytest.mark.slow
def test_outputs_past_two_to_the_31():
    check.check_large_outputs(torch.device("cpu"))


def test_the_checks_notice_a_wrong_backend(monkeypatch):
    def off_by_one(ids, out, lift, seq_start):
        dispatch._fill_of("reference")(ids + 1, out, lift, seq_start)

    monkeypatch.setitem(dispatch._chosen, "cpu", off_by_one)
    with pytest.raises(AssertionError, match="differs from the reference"):
        check.check_random_calls(torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_ids_that_are_not_contiguous(dtype):
    generator = torch.Generator().manual_seed(5)
    base = torch.randint(0, 2**16, (8, 12), generator=generator).to(dtype)
    for ids in (
        base.t(),
        base[:, ::2],
        base[:, 1:],
        base[:1].expand(5, 12),
        base[:, :1].expand(8, 9),
    ):
        out = token_code_embedding(ids, CODE, 64)
        assert torch.equal(out, token_code_embedding(ids.contiguous(), CODE, 64))
        assert torch.equal(out, token_code_embedding(ids.long(), CODE, 64))
        token = int(ids[2, 3])
        bits = [bin(token & CODE.row_masks[j]).count("1") % 2 for j in range(16)]
        assert out[3, 2].tolist() == bits * 4


@pytest.mark.skipif(sys.platform != "linux", reason="reserves address space as Linux does")
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_large_batch_stride_does_not_overflow(backend):
    """Two rows that lie 2^31 + 1 elements apart: an offset in 32 bits would miss the second."""
    stride = 2**31 + 1
    # address space without memory: only the pages touched exist
    no_reserve = 0x4000  # Linux's MAP_NORESERVE, which not every Python names
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    storage = torch.frombuffer(mmap.mmap(-1, 4 * (stride + 2), flags=flags), dtype=torch.int32)
    ids = storage.as_strided((2, 2), (stride, 1))
    ids.copy_(torch.tensor([[1, 2], [3, 4]]))
    code = CodeSpec(vocab_size=8, num_bits=3)
    with use_backend(backend):
        out = token_code_embedding(ids, code, 3)
    assert out.tolist() == [[[1, 0, 0], [1, 1, 0]], [[0, 1, 0], [0, 0, 1]]]


def test_empty_ids_launch_nothing(monkeypatch):
    def launched(device_type):
        raise AssertionError("a kernel was asked for")

    monkeypatch.setattr(op, "chosen_fill", launched)
    for shape in ((0, 8), (4, 0)):
        assert token_code_embedding(torch.empty(shape, dtype=torch.int32), CODE, 16).numel() == 0


def fake_ids(index):
    """What a backend reads of ids [2, 3] on ``cuda:index``, on a machine without a GPU."""
    return types.SimpleNamespace(
        device=torch.device("cuda", index),
        stride=lambda: (3, 1),
        data_ptr=lambda: 0xA0,
        element_size=lambda: 8,
    )


def fake_output():
    return types.SimpleNamespace(shape=(3, 2, 16), data_ptr=lambda: 0xB0)


def test_triton_launches_on_the_ids_device(monkeypatch):
    triton_kernel = pytest.importorskip("fixedcode_kernels.triton_kernel")
    current, launches = [0], []

    @contextlib.contextmanager
    def device_guard(device):
        current.append(device.index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", device_guard)
    monkeypatch.setattr(triton_kernel, "launch", lambda *_: launches.append(current[-1]))
    lift = dispatch.make_lift(16, 16, torch.float32, (), 0, 1.0, 0.0, False)
    triton_kernel.fill(fake_ids(1), fake_output(), lift, 0)
    assert launches == [1] and current == [0]


def test_cuda_launches_on_the_ids_device_and_stream(monkeypatch):
    launches = []
    library = types.SimpleNamespace(
        fc_cuda_fill=lambda *arguments: launches.append(arguments) or len(launches) - 1,
        fc_cuda_error=lambda error: b"made up",
    )
    monkeypatch.setattr(cuda_kernel, "library", lambda: library)
    streams = {1: 0x51, 0: 0x50}
    monkeypatch.setattr(
        torch.cuda,
        "current_stream",
        lambda device: types.SimpleNamespace(cuda_stream=streams[device.index]),
    )
    # fake_ids is no tensor, so ctypes never sees it: the launcher above stands in for the library
    lift = dispatch.make_lift(16, 16, torch.float32, (), 0, 1.0, 0.0, False)
    cuda_kernel.fill(fake_ids(1), fake_output(), lift, 5)
    _, *rest = launches[0]
    # ids, out, strides b and s, seq_start, batch, rows, id bytes, device, stream
    assert rest == [0xA0, 0xB0, 3, 1, 5, 2, 6, 8, 1, 0x51]
    with pytest.raises(RuntimeError, match="CUDA error 1: made up"):
        cuda_kernel.fill(fake_ids(1), fake_output(), lift, 5)


def test_without_triton_the_next_backend_serves_the_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "fixedcode_kernels.triton_kernel", raising=False)
    assert "triton" in dispatch._unavailable.__wrapped__("triton", "cuda")


def test_more_tokens_than_the_kernels_count_are_refused():
    native.check_rows(2**31 - 1024)
    with pytest.raises(ValueError, match="2147483648 tokens in one call"):
        native.check_rows(2**31)
