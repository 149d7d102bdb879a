"""Token codes against the papers' statements, exhaustively for K = 16, and against hand work."""

import itertools
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fixedcode_megatron import TokenCode
from fixedcode_megatron.codes import minimal_bits
from fixedcode_megatron.errors import UserError

ALL_IDS = torch.arange(2**16)
FULL_CODES = {
    "binary": TokenCode.binary(2**16),
    "binary shifted": TokenCode.binary(2**16, shift=0xA5F0),
    "gf2": TokenCode.gf2(2**16),
    "gf2 shifted": TokenCode.gf2(2**16, seed=7, shift=0x1234),
}
full_codes = pytest.mark.parametrize("code", FULL_CODES.values(), ids=FULL_CODES.keys())


def digits(number: int, width: int) -> list[int]:
    """Binary digits, lowest first, by way of a string."""
    return [int(digit) for digit in reversed(format(number, f"0{width}b"))]


# ---------------------------------------------------------------------- the canonical code


def test_canonical_bits_are_the_binary_digits_of_every_id():
    expected = torch.tensor([digits(t, 16) for t in range(2**16)], dtype=torch.uint8)
    assert torch.equal(TokenCode.binary(2**16).bits(ALL_IDS), expected)
    assert torch.equal(TokenCode.binary(49152).bits(ALL_IDS[:49152]), expected[:49152])


def test_input_vectors_worked_out_by_hand():
    code = TokenCode.binary(6)  # K = 3; id 5 is 101, id 3 is 011 with the lowest bit last
    assert code.embed([5, 3], 6).tolist() == [[1, 0, 1, 1, 0, 1], [1, 1, 0, 1, 1, 0]]
    interleaved = TokenCode.binary(6, lift="interleave")
    assert interleaved.embed([5, 3], 6).tolist() == [[1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 0, 0]]
    signs = TokenCode.binary(6, scale=2.0, offset=-1.0, shift=0b001)
    assert signs.embed(5, 3).tolist() == [-1, -1, 1]
    # A c(5) with rows 110, 010, 101 is (1, 0, 0); xor b = (0, 1, 1) gives all ones.
    recoded = TokenCode.gf2(6, matrix=[[1, 1, 0], [0, 1, 0], [1, 0, 1]], shift=0b110)
    assert recoded.bits(5).tolist() == [1, 1, 1]
    assert recoded.encode(5).item() == 7


def test_token_0_is_the_zero_vector_and_the_top_bits_of_49152_never_meet():
    code = TokenCode.binary(49152)
    assert not code.embed(0, 2048).any()
    assert code.embed(1, 2048).nonzero().flatten().tolist() == list(range(0, 2048, 16))
    bits = code.bits(torch.arange(49152))
    assert not (bits[:, 14] & bits[:, 15]).any()


# ---------------------------------------------------------------------- the propositions


def test_proposition_1_width_is_the_least_that_tells_all_tokens_apart():
    width = 1
    for vocab_size in range(2, 2**16 + 2):
        width += vocab_size > 2**width
        assert minimal_bits(vocab_size) == width
    for width in range(1, 32):
        assert TokenCode.binary(2**width).num_bits == width
        assert TokenCode.gf2(2**width).num_bits == width
    for make in (TokenCode.binary, TokenCode.gf2):
        with pytest.raises(UserError, match=r"--code-bits 15: .* 49152 tokens needs 16 to 32"):
            make(49152, num_bits=15)


@full_codes
def test_proposition_2_no_two_tokens_share_an_input_vector(code):
    vectors = code.table(16)
    assert len(torch.unique(vectors, dim=0)) == 2**16
    tiled = code.embed(ALL_IDS[::257], 64)
    assert torch.equal(tiled, vectors[::257].repeat(1, 4))


@full_codes
def test_corollary_1_the_codes_are_the_whole_hypercube(code):
    assert torch.equal(code.encode(ALL_IDS).sort().values, ALL_IDS)
    bits = code.bits(ALL_IDS).double()
    both = bits.T @ bits  # both[i, j] counts the tokens with bits i and j set
    ones = both.diagonal()
    assert torch.equal(ones, torch.full((16,), 2.0**15, dtype=torch.float64))
    for i, j in itertools.combinations(range(16), 2):
        patterns = [both[i, j], ones[i] - both[i, j], ones[j] - both[i, j]]
        assert [*patterns, 2**16 - sum(patterns)] == [2**14] * 4


@full_codes
def test_proposition_3_input_vectors_span_k_dimensions(code):
    table = code.table(48).double()
    assert torch.linalg.matrix_rank(table.T @ table) == 16


def test_proposition_3_fewer_dimensions_are_possible_below_2_to_the_k():
    # The canonical codes of ids 0, 1, 2 span two dimensions, whatever the width.
    assert torch.linalg.matrix_rank(TokenCode.binary(3, num_bits=4).table(8)) == 2
    assert torch.linalg.matrix_rank(TokenCode.binary(5).table(12)) == 3


# ---------------------------------------------------------------------- affine recoding


def test_gf2_codes_are_the_matrix_product_for_every_id():
    code = TokenCode.gf2(2**16, shift=0x00FF)
    canonical = np.array([digits(t, 16) for t in range(2**16)])
    expected = (canonical @ code.matrix().T.astype(int) + digits(0x00FF, 16)) % 2
    assert np.array_equal(code.bits(ALL_IDS).numpy(), expected)
    integers = (expected << np.arange(16)).sum(axis=1)
    assert np.array_equal(code.encode(ALL_IDS).numpy(), integers)


def test_gf2_codes_of_seed_12345_are_pinned():
    # Columns 0, 1 and 15 of the matrix pinned in test_gf2, as integers; 3 is their sum.
    code = TokenCode.gf2(49152)
    assert code.encode([0, 1, 2, 3, 0x8000]).tolist() == [
        0,
        0b1000101010101001,
        0b1110001010110010,
        0b1000101010101001 ^ 0b1110001010110010,
        0b0001101010010101,
    ]


def test_gf2_with_the_unit_matrix_is_the_canonical_code():
    unit = TokenCode.gf2(1000, matrix=np.eye(10))
    assert torch.equal(unit.table(20), TokenCode.binary(1000).table(20))
    assert unit.seed is None and unit.row_masks == tuple(2**i for i in range(10))


def test_a_drawn_matrix_and_the_same_matrix_given_are_one_code():
    drawn = TokenCode.gf2(49152, seed=99)
    given = TokenCode.gf2(49152, matrix=drawn.matrix())
    assert given == drawn and given.fingerprint == drawn.fingerprint
    assert TokenCode.gf2(49152, seed=98) != drawn


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"matrix": np.eye(15)}, "15 x 15: 49152 tokens need 16 to 32 bits"),
        ({"matrix": np.eye(33)}, "33 x 33: 49152 tokens need 16 to 32 bits"),
        ({"matrix": np.eye(17), "num_bits": 16}, "17 x 17 but --code-bits is 16"),
        ({"matrix": np.ones((16, 16))}, "singular over GF.2.: its rank is 1"),
        ({"matrix": 2 * np.eye(16)}, r"found 2.0 in row 0, column 0"),
        ({"seed": -1}, "--code-seed must be between 0 and 2..64 - 1, found -1"),
        ({"seed": 2**64}, "--code-seed must be between 0"),
        ({"shift": 65536}, "--code-shift 65536 does not fit .* 16 bits: choose 0 to 65535"),
        ({"num_bits": 33}, "--code-bits 33: .* needs 16 to 32"),
    ],
)
def test_bad_gf2_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        TokenCode.gf2(49152, **options)


def test_a_larger_matrix_makes_a_larger_code():
    code = TokenCode.gf2(49152, matrix=np.eye(20), shift=1 << 19)
    assert code.num_bits == 20
    assert code.bits(5).tolist() == [*digits(5, 19), 1]


# ---------------------------------------------------------------------- sizes and ids

SIZES = [2, 3, 4, 5, 255, 256, 257, 49152, 128256, 2**24 + 1, 2**31 - 1, 2**31]


@pytest.mark.parametrize("vocab_size", SIZES)
@pytest.mark.parametrize("extra_bits", [0, 1])
def test_encode_and_decode_at_the_ends_of_any_vocabulary(vocab_size, extra_bits):
    num_bits = minimal_bits(vocab_size) + extra_bits
    ids = [t for t in (0, 1, 2, vocab_size // 2, vocab_size - 2, vocab_size - 1) if t < vocab_size]
    binary = TokenCode.binary(vocab_size, num_bits=num_bits)
    assert binary.encode(ids, check=True).tolist() == ids
    assert binary.bits(ids).tolist() == [digits(t, num_bits) for t in ids]
    code = TokenCode.gf2(vocab_size, num_bits=num_bits, shift=1)
    for token, found in zip(ids, code.encode(ids).tolist(), strict=True):
        product = code.matrix().astype(int) @ digits(token, num_bits) % 2
        assert digits(found ^ 1, num_bits) == product.tolist()
    assert code.decode(code.encode(ids)).tolist() == ids


def test_every_id_comes_back_and_unused_codes_belong_to_no_token():
    code = TokenCode.gf2(49152, shift=77)
    codes = code.encode(ALL_IDS[:49152])
    assert torch.equal(code.decode(codes), ALL_IDS[:49152])
    unused = torch.ones(2**16, dtype=torch.bool)
    unused[codes] = False
    assert unused.sum() == 16384
    owners = code.decode(unused.nonzero().flatten(), check=False)
    assert torch.equal(owners.sort().values, ALL_IDS[49152:])
    for wrong in (int(unused.nonzero()[0]), -1, 2**16):
        with pytest.raises(UserError, match=rf"{wrong} at position \(0, 1\) is the code of no id"):
            code.decode([[int(codes[5]), wrong]])


def test_ids_of_any_shape_and_integer_type():
    code = TokenCode.gf2(200)
    ids = torch.arange(120).reshape(2, 3, 20)
    expected = code.embed(ids, 16)
    assert expected.shape == (2, 3, 20, 16)
    for dtype in (torch.int32, torch.int16, torch.uint8):
        assert torch.equal(code.embed(ids.to(dtype), 16), expected)
    assert torch.equal(code.embed(ids.transpose(0, 2), 16), expected.transpose(0, 2))
    assert torch.equal(code.embed(ids.tolist(), 16), expected)
    assert torch.equal(code.embed(ids.numpy(), 16), expected)
    assert code.embed(torch.empty(0, 4, dtype=torch.int64), 16).shape == (0, 4, 16)
    assert code.encode([]).shape == (0,)
    for wrong in (torch.tensor([1.0]), torch.tensor([True]), ["a"], [2**70]):
        with pytest.raises(UserError, match=r"token ids must be .*integers"):
            code.encode(wrong)


def test_ids_out_of_range_are_named_on_request_and_defined_without():
    code = TokenCode.binary(49152)
    for wrong in (49152, -1, 2**40):
        ids = torch.tensor([[0, 1, 2], [3, wrong, wrong]])
        for method in (code.encode, code.bits, code.values):
            with pytest.raises(UserError, match=rf"{wrong} at position \(1, 1\) is outside 0"):
                method(ids, check=True)
        with pytest.raises(UserError, match=rf"{wrong} at position"):
            code.embed(ids, 32, check=True)
    assert code.encode([49152, -1, 2**40 + 5, -65536]).tolist() == [49152, 65535, 5, 0]
    assert torch.equal(code.encode(torch.tensor([-2], dtype=torch.int32)), torch.tensor([65534]))


@pytest.mark.parametrize("vocab_size", [-5, 0, 1, 2**31 + 1])
def test_vocabularies_out_of_range_are_refused(vocab_size):
    for make in (TokenCode.binary, TokenCode.gf2, TokenCode.random):
        with pytest.raises(UserError, match=rf"between 2 and 2..31, found {vocab_size}"):
            make(vocab_size)


# ---------------------------------------------------------------------- width and lift


def test_a_width_that_does_not_fit_is_refused_with_what_would_work():
    expected = {
        # 2048 = 2**11: of 17..32 only 32 divides it; 120 * 17 = 2040, 121 * 17 = 2057
        (128256, 2048): "--code-bits 32; --hidden-size 2040 or 2057; --code-allow-partial-tile",
        # 240 = 2**4 * 3 * 5; code of 9 bits: 10, 12, 15, 16, 20, 24, 30
        (500, 240): "--code-bits 10, 12, 15, 16, 20, 24, 30; --hidden-size 234 or 243; "
        "--code-allow-partial-tile",
        # a prime width above 32: no number of bits helps
        (500, 37): "--hidden-size 36 or 45; --code-allow-partial-tile",
        # a width below K, and one below any multiple of K
        (500, 8): "--hidden-size 9",
    }
    for (vocab_size, width), advice in expected.items():
        code = TokenCode.binary(vocab_size)
        for method in (code.check_width, code.lift_index, code.table, partial(code.embed, 0)):
            with pytest.raises(UserError) as caught:
                method(width)
            assert str(caught.value) == (
                f"--hidden-size {width} is not a multiple of the code width {code.num_bits}; "
                f"what would work: {advice}"
            )
    TokenCode.binary(128256, num_bits=32).check_width(2048)
    TokenCode.binary(49152).check_width(2048)
    with pytest.raises(UserError) as caught:
        TokenCode.binary(128256, lift="interleave").check_width(2048)
    assert "partial" not in str(caught.value)


def test_a_partial_last_tile_shows_the_first_columns_once_more():
    code = TokenCode.binary(6, allow_partial_tile=True)
    assert code.lift_index(7).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert code.embed(5, 7).tolist() == [1, 0, 1, 1, 0, 1, 1]
    assert torch.equal(code.table(6), TokenCode.binary(6).table(6))
    with pytest.raises(UserError, match="--hidden-size 2 is not a multiple of the code width 3"):
        code.check_width(2)  # would lose a bit
    with pytest.raises(UserError, match="--code-allow-partial-tile"):
        TokenCode.binary(6, allow_partial_tile=True, lift="interleave")


def test_interleave_is_a_permutation_of_tile():
    tile, interleave = TokenCode.gf2(5000), TokenCode.gf2(5000, lift="interleave")
    ids = torch.arange(0, 5000, 13)
    # element i of the interleaved vector is copy i % s of bit i // s
    permutation = torch.tensor([(i % 4) * 13 + i // 4 for i in range(52)])
    assert permutation.sort().values.tolist() == list(range(52))
    assert torch.equal(interleave.embed(ids, 52), tile.embed(ids, 52)[:, permutation])
    assert interleave.lift_index(26).tolist() == [i // 2 for i in range(26)]


# ---------------------------------------------------------------------- values


def test_values_are_computed_in_fp32_and_rounded_once():
    code = TokenCode.binary(4, scale=0.1, offset=0.7)
    one = np.float32(0.7) + np.float32(0.1)
    assert code.values([0, 1]).tolist() == [[float(np.float32(0.7))] * 2, [one, np.float32(0.7)]]
    # BF16 keeps 8 bits: 0.7 lies in [0.5, 1), in steps of 2**-8; 0.8 likewise.
    assert code.bit_values(torch.bfloat16) == (179 / 256, 205 / 256)
    assert code.embed(1, 2, torch.bfloat16).tolist() == [205 / 256, 179 / 256]
    assert code.table(2, torch.float16).dtype == torch.float16


def test_values_that_lose_the_code_are_refused():
    for scale, offset in [(0.0, 1.0), (1.0, 1e10), (1e39, 0.0), (float("nan"), 0.0), (1.0, -1e39)]:
        with pytest.raises(UserError, match="two different finite values are needed"):
            TokenCode.binary(4, scale=scale, offset=offset)
    for scale, offset in [(0.0, 1.0), (1e39, 0.0), (1e-60, 0.0), (1.0, float("inf"))]:
        with pytest.raises(UserError, match=r"--code-scale .* --code-offset .*finite FP32"):
            TokenCode.random(4, scale=scale, offset=offset)
    fine = TokenCode.binary(4, scale=0.001, offset=1.0)
    with pytest.raises(UserError, match=r"show as 1.0 and 1.0 in torch.bfloat16"):
        fine.embed(1, 2, torch.bfloat16)


def test_a_table_made_in_pieces_equals_one_made_at_once():
    code = TokenCode.gf2(70000)  # more than one piece
    assert torch.equal(code.table(17), code.embed(torch.arange(70000), 17))


# ---------------------------------------------------------------------- random codes


def test_random_values_are_pinned():
    code = TokenCode.random(49152)
    scaled = (code.values([0, 1, 49151])[:, :3].double() * 2**23).long()
    # From the published description of SplitMix64 in unsigned NumPy arithmetic; see test_gf2.
    assert scaled.tolist() == [
        [-8123040, 15861, -5410466],
        [3667947, -3941932, -8138037],
        [8291779, 3813462, 4083360],
    ]
    other_width = TokenCode.random(49152, num_bits=100)
    assert torch.equal(other_width.values([5, 9])[:, :16], code.values([5, 9]))


def test_random_values_are_multiples_of_2_to_the_minus_23_in_range():
    scaled = TokenCode.random(2**16).values(ALL_IDS).double() * 2**23
    assert torch.equal(scaled, scaled.round())
    assert scaled.min() >= -(2**23) and scaled.max() < 2**23
    assert (scaled.long() & 1).double().mean().sub(0.5).abs() < 5 * 0.5 / 2**10  # lowest bit


def test_random_values_have_the_moments_of_a_uniform_distribution():
    values = TokenCode.random(2**16).values(ALL_IDS).double()
    count = values.numel()
    # Var x = 1/3; Var x^2 = 1/5 - 1/9 = 4/45. Bounds: five standard deviations of each mean.
    assert values.mean().abs() < 5 * (1 / 3 / count) ** 0.5
    assert (values.square().mean() - 1 / 3).abs() < 5 * (4 / 45 / count) ** 0.5
    columns = values.mean(dim=0)
    assert columns.abs().max() < 5 * (1 / 3 / 2**16) ** 0.5
    # 16 equal cells: chi-square with 15 degrees of freedom, mean 15, standard deviation 5.5.
    cells = torch.histc(values.float(), bins=16, min=-1, max=1).double()
    assert ((cells - count / 16).square() / (count / 16)).sum() < 15 + 5 * 30**0.5


def test_random_columns_ids_and_seeds_are_uncorrelated():
    values = TokenCode.random(2**16).values(ALL_IDS).double()
    other_seed = TokenCode.random(2**16, seed=12346).values(ALL_IDS).double()
    limit = 5 / 2**8  # a correlation over 2**16 samples has standard deviation 2**-8
    columns = values.T @ values / (2**16 / 3) - torch.eye(16)
    assert columns.fill_diagonal_(0).abs().max() < limit
    seeds = values.T @ other_seed / (2**16 / 3)
    assert seeds.abs().max() < limit
    for distance in (1, 2, 256, 4096):
        ids = values[:-distance].T @ values[distance:] / (2**16 / 3)
        assert ids.abs().max() < limit


def test_random_codes_tell_tokens_apart_and_take_scale_offset_and_lift():
    code = TokenCode.random(2**16, num_bits=4, scale=0.02, offset=0.5, lift="interleave")
    table = code.table(8)
    assert len(torch.unique(table, dim=0)) == 2**16
    plain = TokenCode.random(2**16, num_bits=4).values(ALL_IDS).numpy()
    expected = plain * np.float32(0.02) + np.float32(0.5)
    assert np.array_equal(table[:, ::2].numpy(), expected)
    assert torch.equal(table[:, ::2], table[:, 1::2])
    assert torch.equal(code.table(8, torch.bfloat16), table.to(torch.bfloat16))


def test_random_codes_have_no_bits():
    code = TokenCode.random(100)
    for method in (code.encode, code.decode, code.bits, lambda _: code.matrix()):
        with pytest.raises(UserError, match="a random code has no bits"):
            method(1)
    with pytest.raises(UserError, match=r"7 at position \(\) is outside 0..4"):
        TokenCode.random(5).values(7, check=True)
    with pytest.raises(UserError, match="--code-seed must be between 0"):
        TokenCode.random(5, seed=-3)
    with pytest.raises(UserError, match="--code-bits 0: a random code"):
        TokenCode.random(5, num_bits=0)
    with pytest.raises(UserError, match=r"--hidden-size 10 .* --code-bits 1, 2, 5, 10;"):
        TokenCode.random(5).check_width(10)
    # 2048 has 12 divisors; the eight nearest to 17 are named
    with pytest.raises(UserError, match=r"--code-bits 1, 2, 4, 8, 16, 32, 64, 128; "):
        TokenCode.random(70000).check_width(2048)


# ---------------------------------------------------------------------- cheap and pure


def test_codes_can_be_made_and_checked_under_fake_tensors():
    with FakeTensorMode():
        code = TokenCode.gf2(49152, scale=2.0, offset=-1.0)
        code.check_width(2048)
    assert code.row_masks == TokenCode.gf2(49152).row_masks


def test_imports_are_cheap_and_free_of_megatron():
    program = (
        "import sys, fixedcode_megatron; assert 'torch' not in sys.modules;"
        "from fixedcode_megatron import TokenCode; TokenCode.gf2(1000);"
        "assert not {'megatron', 'triton', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
