"""--data-path and --split: what they mean and what is refused."""

import numpy as np
import pytest

from fixedcode_megatron.data.blend import Blend, parse_blend, parse_split
from fixedcode_megatron.data.indexed import IndexedDatasetWriter
from fixedcode_megatron.errors import UserError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("a_text_document", "b", "c", "0.5"):
        with IndexedDatasetWriter(tmp_path / name, np.uint16) as writer:
            writer.add_document([1, 2, 3])
            writer.commit()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_accepted(folder):
    assert parse_blend(["b"]) == Blend(("b",), None)
    assert parse_blend(["7", "b"]) == Blend(("b",), None)
    assert parse_blend(["b", "c"]) == Blend(("b", "c"), None)
    assert parse_blend(["8", "b", "2", " c "]) == Blend(("b", "c"), (0.8, 0.2))
    assert parse_blend(["0.5"]) == Blend(("0.5",), None)  # a dataset called like a number


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "is empty"),
        (["0.3", "a_text_document", "b", "c"], "value 3, b, should be a weight"),
        (["0.3", "b", "0.7"], "0.7 has no prefix"),
        (["0.3", "0.7", "b", "c"], r"value 2, 0\.7, should be a prefix"),
        (["b", "0.3"], r"0\.3 looks like a weight, but b has none"),
        (["0", "b", "1", "c"], "weight 0 of b must be above 0"),
        (["-1", "b", "1", "c"], "weight -1 of b"),
        (["inf", "b", "1", "c"], "weight inf of b"),
        (["b.bin"], r"without \.bin/\.idx: b$"),
        (["b.idx"], r"without \.bin/\.idx: b$"),
        (["a"], r"a\.idx does not exist; did you mean a_text_document\?"),
        (["nowhere/a"], "there is no folder nowhere"),
        (["0.4", "b", "0.6", "b"], "b occurs twice"),
    ],
)
def test_refused(folder, values, message):
    with pytest.raises(UserError, match=message):
        parse_blend(values)


def test_a_lone_idx_is_refused(folder):
    (folder / "b.bin").unlink()
    with pytest.raises(UserError, match=r"b\.bin does not exist"):
        parse_blend(["b"])


def test_split_equals_megatron_core():
    from megatron.core.datasets.blended_megatron_dataset_config import (
        convert_split_vector_to_split_matrix,
        parse_and_normalize_split,
    )

    for text in ("969,30,1", "98,2", "1", "100,0,0", "0,0,1", "99.5,0.5,0", "1,0,1"):
        theirs = convert_split_vector_to_split_matrix(parse_and_normalize_split(text))
        assert list(parse_split(text)) == theirs, text
    assert parse_split("98,2") == ((0.0, 0.98), (0.98, 1.0), None)


@pytest.mark.parametrize("text", ["", "a,b,c", "1,2,3,4", "-1,2,3", "0,0,0", "1;2", "nan,1"])
def test_split_refused(text):
    with pytest.raises(UserError, match="969,30,1"):
        parse_split(text)
