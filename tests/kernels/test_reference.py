"""The reference against values worked out by hand and against scalar Python arithmetic."""

import pytest
import torch

from fixedcode_kernels import CodeSpec, token_code_embedding, use_backend


@pytest.fixture(autouse=True)
def _reference_backend():
    with use_backend("reference"):
        yield


def test_canonical_code_tiles_bit_zero_first():
    # 5 = 101b, 2 = 010b; seven elements show the columns 0 1 2 0 1 2 0.
    code = CodeSpec(vocab_size=8, num_bits=3)
    out = token_code_embedding(torch.tensor([[5, 2]]), code, 7)
    assert out.tolist() == [[[1, 0, 1, 1, 0, 1, 1]], [[0, 1, 0, 0, 1, 0, 0]]]


def test_interleave_repeats_each_column():
    code = CodeSpec(vocab_size=8, num_bits=3, lift="interleave")
    out = token_code_embedding(torch.tensor([[6]]), code, 6)  # 6 = 110b: columns 0, 1, 1
    assert out.tolist() == [[[0, 0, 1, 1, 1, 1]]]


def test_affine_map_by_hand():
    # A = [[1,1,0],[0,1,0],[0,0,1]] (row j as an integer: bit k is column k), b = 100b.
    # id 3 = (1,1,0): A id = (1+1, 1, 0) = (0,1,0); xor b = (0,1,1).
    code = CodeSpec(vocab_size=8, num_bits=3, row_masks=(0b011, 0b010, 0b100), shift=0b100)
    out = token_code_embedding(torch.tensor([[3]]), code, 3)
    assert out.tolist() == [[[0, 1, 1]]]


def test_output_layout_is_sequence_first():
    code = CodeSpec(vocab_size=4, num_bits=2)
    ids = torch.tensor([[0, 1, 2], [3, 2, 1]])
    out = token_code_embedding(ids, code, 2)
    assert out.shape == (3, 2, 2)
    assert out[2, 0].tolist() == [0, 1]  # ids[0, 2] = 2
    assert out[0, 1].tolist() == [1, 1]  # ids[1, 0] = 3
    assert token_code_embedding(ids, code, 2, seq_start=1, seq_length=1).tolist() == [
        [[1, 0], [0, 1]]
    ]


def test_values_are_summed_in_fp32_and_rounded_once():
    # 1 + 2^-9 is exact in FP32; bf16 keeps 8 bits, so it rounds to 1. 1 + 3 * 2^-9 lies nearer to
    # 1 + 2^-7 (its neighbours are 1 and 1 + 2^-7, the middle is 1 + 2^-8).
    code = CodeSpec(vocab_size=2, num_bits=1, offset=1.0, scale=2.0**-9)
    assert token_code_embedding(torch.tensor([[1]]), code, 1, dtype=torch.bfloat16).item() == 1.0
    code = CodeSpec(vocab_size=2, num_bits=1, offset=1.0, scale=3 * 2.0**-9)
    out = token_code_embedding(torch.tensor([[1]]), code, 1, dtype=torch.bfloat16)
    assert out.item() == 1.0 + 2.0**-7
    # FP32 arithmetic, not FP64: 1 + 2^-30 is 1 even when the output is FP64.
    code = CodeSpec(vocab_size=2, num_bits=1, offset=1.0, scale=2.0**-30)
    assert token_code_embedding(torch.tensor([[1]]), code, 1, dtype=torch.float64).item() == 1.0


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_outside_the_code_count_modulo_its_size(dtype):
    code = CodeSpec(vocab_size=8, num_bits=3)
    ids = torch.tensor([[-1, 9, -8]], dtype=dtype)
    out = token_code_embedding(ids, code, 3)
    assert out[:, 0].tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(("k", "shift"), [(31, 0x2AAAAAAA), (32, 0xAAAAAAAA)])
def test_large_codes_against_scalar_arithmetic(k, shift):
    generator = torch.Generator().manual_seed(1)
    masks = tuple(torch.randint(0, 1 << k, (k,), generator=generator).tolist())
    ids = torch.randint(0, (1 << 31) - 1, (2, 5), generator=generator)
    code = CodeSpec(
        vocab_size=(1 << 31) - 1, num_bits=k, row_masks=masks, shift=shift, scale=2.0, offset=-1.0
    )
    out = token_code_embedding(ids, code, 40)
    for b in range(2):
        for s in range(5):
            token = int(ids[b, s])
            bits = [(bin(token & masks[j]).count("1") + (shift >> j)) % 2 for j in range(k)]
            assert out[s, b].tolist() == [2.0 * bits[i % k] - 1.0 for i in range(40)]
