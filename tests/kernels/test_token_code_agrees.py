"""The op and `fixedcode_megatron.codes.TokenCode`, written independently, agree bit for bit."""

import pytest
import torch
from kernel_cases import same_bits

from fixedcode_kernels import token_code_embedding, use_backend

codes = pytest.importorskip("fixedcode_megatron.codes")

CODES = [
    codes.TokenCode.binary(49152),
    codes.TokenCode.binary(128256, scale=2.0, offset=-1.0),
    codes.TokenCode.gf2(49152),
    codes.TokenCode.gf2(50257, shift=0b1010, scale=-1.7, offset=0.3),
    codes.TokenCode.gf2(151936, lift="interleave"),
    codes.TokenCode.binary(32000, num_bits=16, lift="interleave"),
    codes.TokenCode.binary(128256, num_bits=32),
    codes.TokenCode.gf2(128256, num_bits=32, shift=0x8000_0001),
    codes.TokenCode.gf2(2**31, num_bits=32, lift="interleave"),
]


@pytest.mark.parametrize("backend", ["reference", "table", "cpu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("code", CODES, ids=lambda code: f"{code.kind}-{code.num_bits}")
def test_op_equals_token_code(code, dtype, backend):
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, code.vocab_size, (3, 7), generator=generator)
    hidden = 8 * code.num_bits
    try:
        with use_backend(backend):
            out = token_code_embedding(ids, code, hidden, dtype=dtype, check_ids=True)
    except RuntimeError as error:
        pytest.skip(str(error))
    assert same_bits(out, code.embed(ids, hidden, dtype).transpose(0, 1).contiguous())


@pytest.mark.parametrize("backend", ["reference", "table", "cpu"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("code", CODES[-3:], ids=["binary", "gf2", "interleave"])
def test_ids_outside_the_vocabulary_at_32_bits(code, dtype, backend):
    """Two's complement: -1 is 2^32 - 1, and 2^32 + 5 is 5, as `TokenCode.encode` has it."""
    ids = torch.tensor([[-1, -(2**31), 2**31 - 1, 128256], [0, -2, 5, 1 << 30]], dtype=dtype)
    if dtype == torch.int64:
        ids = torch.cat((ids, torch.tensor([[2**31, 2**32 + 5, -(2**63), 2**63 - 1]])))
    try:
        with use_backend(backend):
            out = token_code_embedding(ids, code, 4096)
    except RuntimeError as error:
        pytest.skip(str(error))
    assert same_bits(out, code.embed(ids, 4096).transpose(0, 1).contiguous())
    if code.row_masks is None:
        assert out[0, 0].eq(1).all()  # -1: every bit is set
        if dtype == torch.int64:
            assert torch.equal(out[1, 2], out[2, 1])  # 2^32 + 5 and 5


def test_op_equals_token_code_with_a_partial_tile():
    code = codes.TokenCode.gf2(128256, allow_partial_tile=True)
    ids = torch.arange(100).view(4, 25) * 1201
    out = token_code_embedding(ids, code, 2048, dtype=torch.bfloat16)
    assert same_bits(out, code.embed(ids, 2048, torch.bfloat16).transpose(0, 1).contiguous())
