"""What makes two token codes the same: JSON, fingerprint, equality, hash."""

import copy
import hashlib
import json
import pickle

import numpy as np
import pytest

from fixedcode_megatron import TokenCode
from fixedcode_megatron.errors import UserError

SHIFTED_JSON = (
    '{"allow_partial_tile":false,"kind":"gf2","lift":"tile","num_bits":2,"offset":-1.0,'
    '"row_masks":[3,2],"scale":2.0,"seed":null,"shift":1,"version":1,"vocab_size":4}'
)


def test_json_and_fingerprint_are_pinned():
    code = TokenCode.gf2(4, matrix=[[1, 1], [0, 1]], shift=1, scale=2, offset=-1)
    assert code.to_json() == SHIFTED_JSON
    assert code.fingerprint == hashlib.sha256(SHIFTED_JSON.encode()).hexdigest()
    canonical = "773896f8a20fa7cc3baff8c27fd8bb7a92d79684f04631d94db1e91ee58e6174"
    assert TokenCode.binary(49152).fingerprint == canonical


def every_field_changed() -> list[TokenCode]:
    return [
        TokenCode.binary(1000),
        TokenCode.binary(1001),
        TokenCode.binary(1000, num_bits=11),
        TokenCode.binary(1000, shift=1),
        TokenCode.binary(1000, scale=2.0),
        TokenCode.binary(1000, offset=0.5),
        TokenCode.binary(1000, lift="interleave"),
        TokenCode.binary(1000, allow_partial_tile=True),
        TokenCode.gf2(1000),
        TokenCode.gf2(1000, seed=1),
        TokenCode.random(1000),
        TokenCode.random(1000, seed=1),
    ]


def test_round_trips_keep_equality_hash_and_fingerprint():
    for code in every_field_changed():
        fingerprint = code.fingerprint
        twins = [TokenCode.from_json(code.to_json()), copy.deepcopy(code)]
        twins.append(pickle.loads(pickle.dumps(code)))
        for twin in twins:
            assert twin == code and hash(twin) == hash(code)
            assert twin.fingerprint == fingerprint


def test_any_other_field_is_another_code_with_another_fingerprint():
    codes = every_field_changed()
    assert len(set(codes)) == len(codes)
    assert len({code.fingerprint for code in codes}) == len(codes)


def test_equal_numbers_of_other_types_make_the_same_code():
    code = TokenCode.binary(1000, scale=1, offset=-0.0)
    assert code.fingerprint == TokenCode.binary(1000).fingerprint
    odd = TokenCode.binary(np.int64(1000), num_bits=np.int32(10), scale=np.float32(1.0))
    assert odd.to_json() == code.to_json()


def test_a_code_cannot_be_changed():
    with pytest.raises(AttributeError):
        TokenCode.binary(4).shift = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2: this program knows 1"),
        ({"kind": "gray"}, "kind 'gray': choose binary, gf2 or random"),
        ({"lift": "stack"}, "--code-lift 'stack': choose tile or interleave"),
        ({"row_masks": [3, 3]}, "rank 2 is needed, found 1"),
        ({"row_masks": [3, 4]}, "2 rows of 2 bits are needed"),
        ({"row_masks": [3]}, "2 rows of 2 bits are needed"),
        ({"row_masks": 7}, "row_masks must be integers, found 7"),
        ({"row_masks": None}, "a gf2 code has row masks"),
        ({"kind": "binary"}, "a binary code has none"),
        ({"kind": "random"}, "leave out --code-matrix and --code-shift"),
        ({"seed": 1}, "a gf2 code keeps no seed, found 1"),
        ({"vocab_size": 4.5}, "vocab_size must be an integer, found 4.5"),
        ({"scale": "x"}, "scale must be a number, found 'x'"),
        ({"allow_partial_tile": "no"}, "allow_partial_tile must be true or false"),
        ({"extra": 1}, "a token code has the keys"),
    ],
)
def test_json_that_makes_no_code_is_refused(change, message):
    with pytest.raises(UserError, match=message):
        TokenCode.from_json(json.dumps(json.loads(SHIFTED_JSON) | change))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", SHIFTED_JSON[:-1]])
def test_text_that_is_no_code_is_refused(text):
    with pytest.raises(UserError, match=r"token code (has the keys|is not valid JSON)"):
        TokenCode.from_json(text)
