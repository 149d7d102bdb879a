"""The output layer is padded; the code is not."""

import pytest

from fixedcode_megatron.codes import TokenCode
from fixedcode_megatron.model.gpt import Vocabulary


@pytest.mark.parametrize(
    "size, padded",
    [
        (50257, (50304, 50432, 50688)),
        (65535, (65536, 65536, 65536)),
        (65537, (65664, 65792, 66048)),
        (131072, (131072, 131072, 131072)),
    ],
)
def test_padding_by_tensor_parallel_size(size, padded):
    """Case 36."""
    found = [Vocabulary.padded(size, 128, tensor_parallel) for tensor_parallel in (1, 2, 4)]
    assert tuple(v.padded_size for v in found) == padded
    assert {v.size for v in found} == {size}


def test_the_width_of_the_code_follows_from_the_true_size():
    assert TokenCode.binary(Vocabulary.padded(65535, 128, 4).size).num_bits == 16
    assert TokenCode.binary(Vocabulary.padded(65537, 128, 4).size).num_bits == 17
