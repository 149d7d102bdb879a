"""GF(2) algebra, the matrix of a seed, and matrices from files, against slower implementations."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fixedcode_megatron import gf2, splitmix
from fixedcode_megatron.errors import UserError

# The 16 x 16 matrix of seed 12345. It defines the default GF(2) code and must never change.
MATRIX_12345 = """
1010001011100111
0110101111011010
0001010000001101
1011100100101000
0111011011101101
1101011101000010
0010101101010000
1101100010101111
0011101101010110
1100010011110101
0001000101101000
1001100110100001
0001000010111111
0110101011001110
0100010101101000
1110101110001010
"""


def as_array(text: str) -> np.ndarray:
    return np.array([[int(bit) for bit in line] for line in text.split()])


def slow_rank(matrix: np.ndarray) -> int:
    """Elimination on an array of 0 and 1, one entry at a time."""
    matrix, rank = matrix.astype(int) % 2, 0
    for column in range(matrix.shape[1]):
        pivots = [row for row in range(rank, len(matrix)) if matrix[row, column]]
        if not pivots:
            continue
        matrix[[rank, pivots[0]]] = matrix[[pivots[0], rank]]
        for row in range(len(matrix)):
            if row != rank and matrix[row, column]:
                matrix[row] = (matrix[row] + matrix[rank]) % 2
        rank += 1
    return rank


def slow_splitmix(seed: int, count: int) -> list[int]:
    """SplitMix64 in NumPy's unsigned arithmetic, from the published description."""
    outputs = []
    with np.errstate(over="ignore"):
        state = np.uint64(seed)
        for _ in range(count):
            state += np.uint64(0x9E3779B97F4A7C15)
            z = state
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            outputs.append(int(z ^ (z >> np.uint64(31))))
    return outputs


# ---------------------------------------------------------------------- the generator


def test_splitmix64_gives_its_published_outputs():
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert list(itertools.islice(splitmix.stream(1234567), 5)) == published
    assert next(splitmix.stream(0)) == 0xE220A8397B1DCDAF


@pytest.mark.parametrize("seed", [0, 12345, 2**63, 2**64 - 1])
def test_splitmix64_equals_unsigned_numpy(seed):
    assert list(itertools.islice(splitmix.stream(seed), 200)) == slow_splitmix(seed, 200)


@pytest.mark.parametrize("seed", [0, 12345, 2**64 - 1])
def test_uniform_equals_its_definition_in_python_integers(seed):
    ids = torch.tensor([[0, 1, 2], [49151, 2**31 - 1, 2**32 - 1]])
    (start,) = slow_splitmix(seed, 1)
    expected = torch.empty(2, 3, 20)
    for (row, place), token in np.ndenumerate(ids.numpy()):
        for column in range(20):
            counter = int(token) * 2**16 + column
            output = splitmix.mix64(start + (counter + 1) * splitmix.GAMMA)
            expected[row, place, column] = (output >> 40) / 2**23 - 1
    assert torch.equal(splitmix.uniform(ids, 20, seed), expected)
    # Output number n of the stream that starts at `start`: ids 0 and 1 are 2**16 apart in it.
    sequence = [(output >> 40) / 2**23 - 1 for output in slow_splitmix(start, 20)]
    assert splitmix.uniform(torch.tensor(0), 20, seed).tolist() == sequence


# ---------------------------------------------------------------------- algebra


def test_exhaustively_the_3x3_matrices():
    invertible = 0
    for rows in itertools.product(range(8), repeat=3):
        matrix = gf2.to_array(rows).astype(int)
        assert gf2.rank(rows) == slow_rank(matrix)
        assert np.array_equal(gf2.to_array(gf2.transpose(rows)), matrix.T)
        if gf2.rank(rows) == 3:
            invertible += 1
            assert gf2.from_array(matrix) == rows
            product = gf2.to_array(gf2.inverse(rows)).astype(int) @ matrix % 2
            assert np.array_equal(product, np.eye(3))
        else:
            with pytest.raises(UserError, match=f"its rank is {slow_rank(matrix)}"):
                gf2.inverse(rows)
    assert invertible == 168  # |GL(3, 2)| = (8 - 1)(8 - 2)(8 - 4)


def test_row_masks_put_column_i_at_bit_i():
    rows = gf2.from_array([[1, 1, 0], [0, 1, 0], [1, 0, 1]])
    assert rows == (0b011, 0b010, 0b101)
    assert gf2.multiply(rows, 0b001) == 0b101  # column 0, read from below
    assert gf2.multiply(rows, 0b010) == 0b011  # column 1
    assert gf2.multiply(rows, 0b011) == 0b110  # their sum
    assert gf2.identity(3) == (1, 2, 4)


def test_multiply_equals_matrix_product_modulo_2():
    matrix = as_array(MATRIX_12345)
    rows = gf2.from_array(matrix)
    for vector in (0, 1, 0x8000, 0xFFFF, 0xBEEF):
        bits = np.array([(vector >> i) & 1 for i in range(16)])
        expected = sum(int(bit) << j for j, bit in enumerate(matrix @ bits % 2))
        assert gf2.multiply(rows, vector) == expected


# ---------------------------------------------------------------------- the matrix of a seed


def test_the_matrix_of_seed_12345_is_pinned():
    assert np.array_equal(gf2.to_array(gf2.draw_invertible(16, 12345)), as_array(MATRIX_12345))


def test_the_draw_follows_its_description():
    low, high = 5, 11
    rows = [output >> 48 for output in slow_splitmix(12345, 20000)]
    rows = [row for row in rows if low <= bin(row).count("1") <= high]
    for start in range(0, len(rows), 16):
        text = "\n".join(format(row, "016b")[::-1] for row in rows[start : start + 16])
        candidate = as_array(text)
        weights = candidate.sum(axis=0)
        if slow_rank(candidate) == 16 and weights.min() >= low and weights.max() <= high:
            break
    assert text == MATRIX_12345.strip()


def test_weight_bounds_are_the_documented_ones():
    stated = {1: (1, 1), 2: (1, 2), 3: (1, 2), 8: (2, 6), 16: (5, 11), 32: (12, 20)}
    assert {size: gf2.weight_bounds(size) for size in stated} == stated
    for size in range(1, 33):  # 1.5 standard deviations, sqrt(K)/2 each
        low, high = gf2.weight_bounds(size)
        reach = 0.75 * math.sqrt(size)
        assert low == max(1, math.ceil(size / 2 - reach))
        assert high == math.floor(size / 2 + reach)


@pytest.mark.parametrize("size", range(1, 33))
def test_drawn_matrices_are_invertible_with_weights_in_bounds(size):
    low, high = gf2.weight_bounds(size)
    matrix = gf2.to_array(gf2.draw_invertible(size, 7))
    assert matrix.shape == (size, size)
    assert slow_rank(matrix) == size
    weights = np.concatenate([matrix.sum(axis=0), matrix.sum(axis=1)])
    assert low <= weights.min() and weights.max() <= high
    inverse = gf2.to_array(gf2.inverse(gf2.from_array(matrix))).astype(int)
    assert np.array_equal(matrix @ inverse % 2, np.eye(size))


def test_seeds_give_different_matrices():
    assert len({gf2.draw_invertible(16, seed) for seed in range(20)}) == 20


# ---------------------------------------------------------------------- files

SMALL = [[1, 1, 0], [0, 1, 0], [1, 0, 1]]


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


def test_every_file_format_gives_the_same_matrix(tmp_path):
    np.save(tmp_path / "int.npy", np.array(SMALL))
    np.save(tmp_path / "bool.npy", np.array(SMALL, dtype=bool))
    np.save(tmp_path / "float.npy", np.array(SMALL, dtype=np.float32))
    write(tmp_path / "m.json", json.dumps(SMALL))
    write(tmp_path / "m.txt", "# a comment\n1 1 0\n\n0 1 0  # row 1\n1\t0 1\n")
    write(tmp_path / "m.csv", "1,1,0\n0, 1, 0\n1,0,1")
    files = sorted(tmp_path.iterdir())
    assert len(files) == 6
    for path in files:
        matrix = gf2.load_matrix(path)
        assert matrix.dtype == np.uint8
        assert matrix.tolist() == SMALL
        assert gf2.load_matrix(str(path)).tolist() == SMALL


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "1 0\n1 0", "singular over GF.2.: its rank is 1"),
        ("a.txt", "1 0\n0 2", "found 2 in row 1, column 1"),
        ("a.txt", "1 0\n0 -1", "found -1 in row 1, column 1"),
        ("a.txt", "1 0\n0", "differ in length"),
        ("a.txt", "1 0 1\n0 1 1", r"found shape \(2, 3\)"),
        ("a.txt", "", "found shape"),
        ("a.txt", "1 0\n0 x", "not a readable matrix.*'x'"),
        ("a.json", "[[1, 0], [0, 1]", "not a readable matrix"),
        ("a.json", '{"matrix": [[1]]}', "found"),
        ("a.json", '[["1", "0"], ["0", "1"]]', "entries must be 0 or 1"),
        ("a.json", "[[1, 0.5], [0, 1]]", "found 0.5 in row 0, column 1"),
        ("a.npy", "not numpy", "not a readable matrix"),
        ("a.npy", "", "not a readable matrix"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=message) as caught:
        gf2.load_matrix(path)
    assert str(caught.value).startswith(f"--code-matrix {path}: ")


def test_missing_and_pickled_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        gf2.load_matrix(tmp_path / "none.txt")
    np.save(tmp_path / "pickled.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="not a readable matrix"):
        gf2.load_matrix(tmp_path / "pickled.npy")
