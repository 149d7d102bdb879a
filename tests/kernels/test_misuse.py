"""What users do to the op that no kernel can know: each is refused by name or simply works."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from kernel_cases import INTEGER, interpreted_triton, same_bits
from torch.utils.data import DataLoader

from fixedcode_kernels import CodeSpec, cpu, dispatch, spec, token_code_embedding, use_backend

CODE = CodeSpec(vocab_size=12, num_bits=4, row_masks=(3, 2, 4, 9), shift=5)
IDS = torch.tensor([[5, 2, 11], [7, 0, 1]])
BACKENDS = [name for name in ("cpu", "table") if dispatch._unavailable(name, "cpu") is None]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


# ---------------------------------------------------------------------- outputs given


def test_autograd_notices_that_a_saved_output_was_overwritten():
    weight, out = torch.ones(8, requires_grad=True), torch.empty(3, 2, 8)
    loss = (token_code_embedding(IDS, CODE, 8, out=out) * weight).sum()
    token_code_embedding(IDS + 1, CODE, 8, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_output_that_requires_grad_is_refused():
    leaf = torch.zeros(3, 2, 8, requires_grad=True)
    for out in (leaf, leaf * 2):
        with pytest.raises(ValueError, match=r"out requires grad.*out\.detach\(\)"):
            token_code_embedding(IDS, CODE, 8, out=out)
    with torch.no_grad():  # as with torch's own operations
        token_code_embedding(IDS, CODE, 8, out=leaf)
    assert torch.equal(leaf, token_code_embedding(IDS, CODE, 8))


@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
def test_an_output_over_the_ids_is_refused(id_type):
    storage = torch.zeros(64)
    ids = storage.view(id_type)[:6].view(2, 3).copy_(IDS)
    for first in (0, 5, 11 if id_type == torch.int64 else 5):  # the ids end at 12 or 6 floats
        out = storage[first : first + 48].view(3, 2, 8)
        with pytest.raises(ValueError, match="ids and out share memory"):
            token_code_embedding(ids, CODE, 8, out=out)
    assert torch.equal(ids, IDS.to(id_type))
    beside = storage[12:60].view(3, 2, 8)  # one memory, but apart
    token_code_embedding(ids, CODE, 8, out=beside)
    assert torch.equal(beside, token_code_embedding(IDS, CODE, 8))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_contiguous_output_may_have_any_stride_in_a_dimension_of_one(backend, dtype):
    out = torch.empty(100, dtype=dtype).as_strided((1, 2, 8), (17, 8, 1))
    with use_backend(backend):
        token_code_embedding(IDS, CODE, 8, seq_start=1, seq_length=1, dtype=dtype, out=out)
    assert torch.equal(out, token_code_embedding(IDS[:, 1:2], CODE, 8, dtype=dtype))


@pytest.mark.skipif(interpreted_triton() is None, reason="triton is not installed")
def test_triton_writes_whole_words_only_to_outputs_that_start_at_one():
    lift = spec.make_lift(4, 8, torch.bfloat16, (), 0, 1.0, 0.0, False)
    memory = bytearray(200)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % 4
    for byte, per_word in ((start, 2), (start + 2, 1)):
        out = torch.frombuffer(memory, dtype=torch.bfloat16, offset=byte, count=48).view(3, 2, 8)
        assert out.storage_offset() == 0
        _, constants = interpreted_triton().arguments(IDS, out, lift, 0)
        assert constants["PER_WORD"] == per_word
    odd = torch.empty(100, dtype=torch.bfloat16).as_strided((1, 2, 8), (17, 8, 1))
    words = interpreted_triton().arguments(IDS[:, :1], odd, lift, 0)[0][1]
    assert words.dtype == torch.int32 and words.numel() == 8


def test_shapes_dtypes_and_strides_of_an_output():
    for out in (
        torch.empty(2, 3, 8),  # [b, s, h]
        torch.empty(2, 3, 8).transpose(0, 1),
        torch.empty(3, 2, 1).expand(3, 2, 8),
        torch.empty(3, 2, 16)[..., ::2],
        torch.empty(3, 2, 8, dtype=torch.float64),
        torch.empty(6, 8),
    ):
        with pytest.raises(ValueError, match=r"must be a contiguous torch\.float32 \(3, 2, 8\)"):
            token_code_embedding(IDS, CODE, 8, out=out)


# ---------------------------------------------------------------------- codes and ids


def test_codes_that_the_op_cannot_embed():
    class Random(CodeSpec):
        kind = "random"

    with pytest.raises(ValueError, match="kind 'random', which has no bits"):
        token_code_embedding(IDS, Random(vocab_size=12, num_bits=4), 8)
    with pytest.raises(ValueError, match="vocab_size is 0"):
        token_code_embedding(IDS, CodeSpec(vocab_size=0, num_bits=4), 8, check_ids=True)
    with pytest.raises(ValueError, match=r"hidden_size is 4294967304; .* 2147483647"):
        token_code_embedding(IDS.to("meta"), CODE, 2**32 + 8)
    with pytest.raises(ValueError, match=r"row_masks\[1\] is 4294967296"):
        masks = (1, 1 << 32, *(1 << j for j in range(2, 32)))
        token_code_embedding(IDS, CodeSpec(vocab_size=12, num_bits=32, row_masks=masks), 32)
    with pytest.raises(ValueError, match="shift is -1"):
        token_code_embedding(IDS, CodeSpec(vocab_size=12, num_bits=32, shift=-1), 32)
    with pytest.raises(TypeError, match="ids is a list"):
        token_code_embedding([[1, 2]], CODE, 8)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_the_id_check_with_the_largest_vocabulary(dtype):
    code = CodeSpec(vocab_size=2**31, num_bits=32)
    ids = torch.tensor([[1, 2**31 - 1]], dtype=dtype)
    assert token_code_embedding(ids, code, 32, check_ids=True)[1, 0].tolist() == [1.0] * 31 + [0]
    ids[0, 1] = -2
    with pytest.raises(ValueError, match=r"token id -2 at row 0, position 1 .* 0 \.\. 2147483647"):
        token_code_embedding(ids, code, 32, check_ids=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ids_with_steps_of_zero_and_storage_offsets(backend):
    base = torch.arange(12)
    for ids, plain in (
        (base[7].expand(2, 3), [[7, 7, 7]] * 2),
        (base.as_strided((2, 3), (0, 2), 1), [[1, 3, 5]] * 2),
        (base.as_strided((2, 3), (2, 0), 4), [[4, 4, 4], [6, 6, 6]]),
        (base.as_strided((2, 3), (1, 1), 8), [[8, 9, 10], [9, 10, 11]]),
    ):
        with use_backend(backend):
            out = token_code_embedding(ids, CODE, 8)
        assert torch.equal(out, token_code_embedding(torch.tensor(plain), CODE, 8))


def test_nothing_to_do():
    assert token_code_embedding(IDS, CODE, 8, seq_start=3).shape == (0, 2, 8)
    out = torch.empty(0, 2, 8)
    assert token_code_embedding(IDS, CODE, 8, seq_length=0, out=out) is out
    assert token_code_embedding(IDS[:0], CODE, 8, check_ids=True).shape == (3, 0, 8)


# ---------------------------------------------------------------------- torch's modes


def test_modes_of_torch_change_nothing():
    expected = token_code_embedding(IDS, CODE, 8)
    with torch.inference_mode():
        out = torch.empty(3, 2, 8)
        assert torch.equal(token_code_embedding(IDS, CODE, 8, out=out), expected)
    assert torch.equal(token_code_embedding(IDS, CODE, 8, out=out), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same_bits(token_code_embedding(IDS, CODE, 8), expected)
    with torch.device("meta"):
        assert same_bits(token_code_embedding(IDS, CODE, 8), expected)


def test_caches_filled_in_inference_mode_serve_training():
    code = CodeSpec(vocab_size=12, num_bits=4, scale=1.625, offset=-0.25)  # used nowhere else
    weight = torch.ones(8, requires_grad=True)
    with use_backend("table"):
        with torch.inference_mode():
            token_code_embedding(IDS, code, 8)
        (token_code_embedding(IDS, code, 8) * weight).sum().backward()
    assert torch.allclose(weight.grad, token_code_embedding(IDS, code, 8).sum((0, 1)))


def test_one_dynamic_graph_serves_all_batches_lengths_and_slices():
    torch._dynamo.reset()
    compilations = []

    def count(graph, inputs):
        compilations.append(graph)
        return graph

    @torch.compile(fullgraph=True, dynamic=True, backend=count)
    def step(ids, start):
        return token_code_embedding(ids, CODE, 8, seq_start=start) + 1

    for batch, length, start in ((2, 5, 2), (3, 9, 4), (7, 6, 3)):
        ids = torch.arange(batch * length).view(batch, length) % 12
        assert torch.equal(step(ids, start), token_code_embedding(ids[:, start:], CODE, 8) + 1)
    assert len(compilations) == 1
    torch._dynamo.reset()


# ---------------------------------------------------------------------- threads and processes


@pytest.mark.skipif(cpu.unavailable() is not None, reason=f"C++ kernel: {cpu.unavailable()}")
def test_more_threads_than_cores():
    ids = torch.randint(0, 12, (4, 1024))
    expected = token_code_embedding(ids, CODE, 2048, dtype=torch.bfloat16)
    before = torch.get_num_threads()
    torch.set_num_threads(3 * (os.cpu_count() or 1) + 1)
    try:
        out = token_code_embedding(ids, CODE, 2048, dtype=torch.bfloat16)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(out.view(INTEGER[2]), expected.view(INTEGER[2]))


FORK = """
import os, sys, torch, fixedcode_kernels as fk
torch.set_num_threads(2)
code, ids = fk.CodeSpec(vocab_size=2**16, num_bits=16), torch.arange(2048).view(4, 512)
if sys.argv[1] == "op":
    fk.token_code_embedding(ids, code, 2048)  # starts threads
else:
    torch.ones(10_000_000).sum()  # so does torch; the op's library is first loaded in the child
if os.fork() == 0:
    out = fk.token_code_embedding(ids, code, 2048)
    row = [1999 >> k & 1 for k in range(16)]
    os._exit(0 if out[1999 % 512, 1999 // 512].tolist() == row * 128 else 3)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@needs_fork
@pytest.mark.parametrize("user_of_threads", ["op", "torch"])
def test_a_child_forked_after_use_does_not_wait_for_threads(user_of_threads):
    process = subprocess.Popen(
        [sys.executable, "-c", FORK, user_of_threads], start_new_session=True
    )
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("the forked child hangs")
    assert process.returncode == 0


def embed_rows(rows):
    return token_code_embedding(torch.stack(rows), CODE, 4096)


@needs_fork
def test_data_loader_workers():
    ids = torch.randint(0, 12, (64, 64))
    embed_rows(list(ids))  # above the size where threads start
    loader = DataLoader(
        ids, 32, num_workers=1, collate_fn=embed_rows, multiprocessing_context="fork", timeout=60
    )
    parts = list(loader)
    assert torch.equal(torch.cat(parts, 1), embed_rows(list(ids)))
