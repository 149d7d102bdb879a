"""Indexed datasets: the byte layout, megatron-core's reader and builder, failures."""

import struct

import numpy as np
import pytest

from fixedcode_megatron.data.index_format import sequence_pointers
from fixedcode_megatron.data.indexed import (
    IndexedDatasetReader,
    IndexedDatasetWriter,
    dtype_for_vocab,
)
from fixedcode_megatron.errors import UserError


def test_bytes_by_hand(tmp_path):
    with IndexedDatasetWriter(tmp_path / "d", np.uint16) as writer:
        writer.add_document([1, 2, 3])
        writer.add_documents(np.array([65535, 7]), np.array([0, 2]))
        writer.commit()
    assert (tmp_path / "d.bin").read_bytes() == struct.pack("<5H", 1, 2, 3, 65535, 7)
    expected = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 4)
    expected += struct.pack("<2i2q4q", 3, 2, 0, 6, 0, 1, 1, 2)
    assert (tmp_path / "d.idx").read_bytes() == expected
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.bin", "d.idx"]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_same_bytes_as_megatron_core_and_read_by_it(tmp_path, dtype):
    torch = pytest.importorskip("torch")
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    high = 65536 if dtype is np.uint16 else 131072
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, high, n) for n in (1, 5, 1000, 17)]
    documents[1][0] = high - 1
    builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
    with IndexedDatasetWriter(tmp_path / "ours", dtype) as writer:
        for ids in documents:
            builder.add_document(torch.from_numpy(ids), [len(ids)])
            writer.add_document(ids)
        builder.add_document(torch.tensor([4, 5, 6]), [1, 2])
        writer.add_document([4, 5, 6], lengths=[1, 2])
        builder.add_document([], [])
        writer.add_document([])
        writer.commit()
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (
            tmp_path / f"theirs{suffix}"
        ).read_bytes()
    theirs = IndexedDataset(str(tmp_path / "ours"))
    ours = IndexedDatasetReader(tmp_path / "ours")
    assert len(theirs) == len(ours) == 6
    assert ours.num_documents == 6
    for i, ids in enumerate([*documents, [4], [5, 6]]):
        assert theirs[i].tolist() == ours[i].tolist() == list(ids)


def test_pointers_across_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("fixedcode_megatron.data.indexed_writer._CHUNK", 3)
    lengths = [4, 1, 2, 9, 3, 5, 7]
    with IndexedDatasetWriter(tmp_path / "d", np.int32) as writer:
        writer.add_documents(np.arange(31), np.array(lengths))
        writer.commit()
    reader = IndexedDatasetReader(tmp_path / "d")
    assert reader.sequence_pointers.tolist() == [0, 16, 20, 28, 64, 76, 96]
    assert reader[4].tolist() == [16, 17, 18]


@pytest.mark.parametrize("vocab_size", [65499, 65500, 65535, 65536])
def test_uint16_up_to_65536(vocab_size):
    """Case 16."""
    assert dtype_for_vocab(vocab_size) is np.uint16


def test_int32_above():
    assert dtype_for_vocab(65537) is np.int32


def test_an_id_that_does_not_fit_is_refused_not_wrapped(tmp_path):
    with (
        pytest.raises(UserError, match="token id 65536 does not fit into uint16"),
        IndexedDatasetWriter(tmp_path / "d", np.uint16) as writer,
    ):
        writer.add_document([1])
        writer.add_document([65536])
    assert list(tmp_path.iterdir()) == []


def test_lengths_that_do_not_add_up_are_refused(tmp_path):
    """Case 3."""
    with (
        pytest.raises(ValueError, match="add up to 4"),
        IndexedDatasetWriter(tmp_path / "d", np.uint16) as writer,
    ):
        writer.add_document([1, 2, 3, 4, 5], lengths=[3, 1])
    assert list(tmp_path.iterdir()) == []


def test_nothing_written_is_refused_and_leaves_nothing(tmp_path):
    """Case 1."""
    with (
        pytest.raises(UserError, match="no tokens written"),
        IndexedDatasetWriter(tmp_path / "d", np.uint16) as writer,
    ):
        writer.add_document([])
        writer.commit()
    assert list(tmp_path.iterdir()) == []


def test_existing_output_stays_until_the_new_one_is_whole(tmp_path):
    for ids, overwrite in (([1, 2], False), ([3], True)):
        with IndexedDatasetWriter(tmp_path / "d", np.uint16, overwrite=overwrite) as writer:
            writer.add_document(ids)
            writer.commit()
    with pytest.raises(UserError, match="--overwrite"):
        IndexedDatasetWriter(tmp_path / "d", np.uint16)
    with IndexedDatasetWriter(tmp_path / "d", np.uint16, overwrite=True) as writer:
        writer.add_document([9])  # no commit
    assert IndexedDatasetReader(tmp_path / "d")[0].tolist() == [3]


def test_two_writers_of_one_prefix_and_what_a_killed_one_left(tmp_path):
    (tmp_path / "d.bin.partial").write_bytes(b"left by a killed process")
    with IndexedDatasetWriter(tmp_path / "d", np.uint16) as writer:
        with pytest.raises(UserError, match="another process is writing"):
            IndexedDatasetWriter(tmp_path / "d", np.uint16)
        writer.add_document([8])
        writer.commit()
    assert (tmp_path / "d.bin").read_bytes() == b"\x08\x00"


def test_damaged_files_are_refused(tmp_path):
    with IndexedDatasetWriter(tmp_path / "d", np.uint16) as writer:
        writer.add_document([1, 2, 3])
        writer.commit()
    index = (tmp_path / "d.idx").read_bytes()
    (tmp_path / "d.bin").write_bytes(b"\1\0\2\0")
    with pytest.raises(UserError, match=r"holds 4 bytes, d\.idx describes 6"):
        IndexedDatasetReader(tmp_path / "d")
    (tmp_path / "d.idx").write_bytes(index[:-1])
    with pytest.raises(UserError, match="its header asks for"):
        IndexedDatasetReader(tmp_path / "d")
    (tmp_path / "d.idx").write_bytes(b"PK\3\4" + index[4:])
    with pytest.raises(UserError, match="not a Megatron index"):
        IndexedDatasetReader(tmp_path / "d")
    (tmp_path / "d.idx").unlink()
    with pytest.raises(UserError, match=r"d\.idx does not exist"):
        IndexedDatasetReader(tmp_path / "d")


def test_pointers_do_not_wrap_at_32_bits():
    """Case 17."""
    lengths = np.array([1 << 30, 1 << 30, 2], np.int32)
    assert sequence_pointers(lengths, 2).tolist() == [0, 2147483648, 4294967296]
    assert sequence_pointers(lengths, 4).tolist() == [0, 4294967296, 8589934592]
    assert sequence_pointers(lengths[1:], 4, first=4294967296).tolist() == [4294967296, 8589934592]
    assert sequence_pointers(lengths[:0], 4).tolist() == []


def test_a_sequence_of_2_31_tokens_is_refused(tmp_path):
    """Case 17."""
    many = np.broadcast_to(np.uint16(1), (1 << 31) + 5)  # takes no memory
    with IndexedDatasetWriter(tmp_path / "d", np.uint16) as writer:
        with pytest.raises(UserError, match="document of 2147483653 ids is longer"):
            writer.add_document(many)
        with pytest.raises(UserError, match="document of 2147483648 ids is longer"):
            writer.add_documents(many, np.array([1 << 31, 5]))
        writer.add_document([1])
        writer.commit()
    assert IndexedDatasetReader(tmp_path / "d").sequence_lengths.tolist() == [1]


def test_modes_of_a_multimodal_dataset(tmp_path):
    """Case 20: As megatron-core writes them, with the modes that its builder fails to fill in."""
    torch = pytest.importorskip("torch")
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), np.int32, multimodal=True)
    with IndexedDatasetWriter(tmp_path / "ours", np.int32, multimodal=True) as writer:
        writer.add_document([1, 2], [2])
        builder.add_document(torch.tensor([1, 2]), [2], [0])
        writer.add_document([3, 4, 5], [1, 2], [0, 1])
        builder.add_document(torch.tensor([3, 4, 5]), [1, 2], [0, 1])
        writer.add_documents(np.array([6, 7]), np.array([1, 0, 1]))
        for ids in ([6], [], [7]):
            builder.add_document(
                torch.tensor(ids, dtype=torch.int64), [1] * len(ids), [0] * len(ids)
            )
        with pytest.raises(ValueError, match="2 modes for 1 sequences"):
            writer.add_document([1, 2], [2], [0, 0])
        writer.commit()
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in (".bin", ".idx"):
        ours, theirs = (tmp_path / f"{who}{suffix}" for who in ("ours", "theirs"))
        assert ours.read_bytes() == theirs.read_bytes()
    assert IndexedDatasetReader(tmp_path / "theirs").sequence_modes.tolist() == [0, 0, 1, 0, 0]
    theirs = IndexedDataset(str(tmp_path / "ours"), multimodal=True)
    ids, mode = theirs[2]
    assert (ids.tolist(), int(mode)) == ([4, 5], 1)


def test_modes_need_a_multimodal_dataset(tmp_path):
    with (
        IndexedDatasetWriter(tmp_path / "d", np.uint16) as writer,
        pytest.raises(ValueError, match="multimodal"),
    ):
        writer.add_document([1], [1], [0])
