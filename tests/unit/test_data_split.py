"""Held-out documents: chosen by content, nothing lost, nothing on both sides."""

import hashlib
import json

import numpy as np
import pytest

from fixedcode_megatron.data import split as splitting
from fixedcode_megatron.data.indexed import IndexedDatasetReader, IndexedDatasetWriter
from fixedcode_megatron.data.inspection import document_ids
from fixedcode_megatron.data.split import content_shares, split
from fixedcode_megatron.data.split_command import main
from fixedcode_megatron.errors import UserError


def write(prefix, documents, dtype=np.uint16):
    with IndexedDatasetWriter(prefix, dtype) as writer:
        for ids in documents:
            writer.add_document(ids)
        writer.commit()
    return str(prefix)


def read(prefix):
    reader = IndexedDatasetReader(prefix)
    return [document_ids(reader, i).tolist() for i in range(reader.num_documents)]


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(5)
    documents = [rng.integers(0, 50000, rng.integers(0, 9)).tolist() for _ in range(3000)]
    return documents + documents[:500]  # with duplicates


def place(ids, seed=0):
    """Where a document lies in [0, 1), from the definition."""
    content = b"".join(i.to_bytes(4, "little") for i in ids)
    digest = hashlib.blake2b(content, digest_size=8, salt=seed.to_bytes(16, "little")).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def test_the_place_of_a_document():
    documents = [[1, 2, 3], [], [49151], [3, 2, 1]]
    ids = np.array([1, 2, 3, 49151, 3, 2, 1], np.uint16)
    sizes = np.array([3, 0, 1, 3])
    expected = [place(document) for document in documents]
    assert content_shares(ids, sizes, 0).tolist() == expected
    assert content_shares(ids.astype(np.int32), sizes, 0).tolist() == expected
    assert content_shares(ids, sizes, 7).tolist() == [place(d, 7) for d in documents] != expected
    assert content_shares(ids[:0], sizes[1:2], 0).tolist() == [place([])]


@pytest.mark.parametrize(("tokens", "documents"), [(1 << 22, 1 << 16), (20, 1000), (50, 3)])
def test_every_document_goes_where_its_content_says(
    tmp_path, monkeypatch, corpus, tokens, documents
):
    monkeypatch.setattr(splitting, "_BLOCK_TOKENS", tokens)
    monkeypatch.setattr(splitting, "_BLOCK_DOCUMENTS", documents)
    parts = split([write(tmp_path / "d", corpus)], str(tmp_path / "o"), valid=0.1, test=0.05)
    assert read(tmp_path / "o_valid") == [d for d in corpus if place(d) < 0.1]
    assert read(tmp_path / "o_test") == [d for d in corpus if place(d) >= 1 - 0.05]
    assert read(tmp_path / "o_train") == [d for d in corpus if 0.1 <= place(d) < 1 - 0.05]
    assert sum(part["documents"] for part in parts.values()) == len(corpus)
    assert sum(part["tokens"] for part in parts.values()) == sum(map(len, corpus))
    # 3,500 documents: five standard deviations around the shares
    assert abs(parts["valid"]["documents"] - 350) < 5 * np.sqrt(350 * 0.9)
    assert abs(parts["test"]["documents"] - 175) < 5 * np.sqrt(175 * 0.95)


def test_order_and_shards_do_not_matter(tmp_path, corpus):
    whole = write(tmp_path / "whole", corpus)
    first = write(tmp_path / "first", corpus[2000:])
    second = write(tmp_path / "second", corpus[:2000])
    split([whole], str(tmp_path / "a"), valid=0.1)
    split([first, second], str(tmp_path / "b"), valid=0.1)
    split([first], str(tmp_path / "c"), valid=0.1)
    for name in ("train", "valid"):
        a, b, c = (read(tmp_path / f"{run}_{name}") for run in "abc")
        assert sorted(a) == sorted(b) and a != b
        assert b[: len(c)] == c
    sides = [{tuple(d) for d in read(tmp_path / f"a_{name}")} for name in ("train", "valid")]
    assert not sides[0] & sides[1]  # duplicates stay together


def test_sentences_and_modes_are_kept(tmp_path):
    rng = np.random.default_rng(0)
    with IndexedDatasetWriter(tmp_path / "d", np.int32, multimodal=True) as writer:
        for number in range(400):
            lengths = rng.integers(1, 4, rng.integers(0, 4))
            ids = np.full(lengths.sum(), number)
            writer.add_document(ids, lengths, np.arange(len(lengths)))
        writer.commit()
    split([str(tmp_path / "d")], str(tmp_path / "o"), valid=0.3)
    whole, total = IndexedDatasetReader(tmp_path / "d"), 0
    for name in ("o_train", "o_valid"):
        part = IndexedDatasetReader(tmp_path / name)
        for i in range(part.num_documents):
            first, end = part.document_indices[i : i + 2]
            if first == end:
                continue
            number = int(part[first][0])
            begin, stop = whole.document_indices[number : number + 2]
            expected = whole.sequence_lengths[begin:stop].tolist()
            assert part.sequence_lengths[first:end].tolist() == expected
            assert part.sequence_modes[first:end].tolist() == list(range(end - first))
            assert set(document_ids(part, i).tolist()) == {number}
            total += sum(expected)
    assert total == len(whole.tokens)


def test_refused_and_nothing_left(tmp_path):
    prefix = write(tmp_path / "d", [[1, 2], [3]])
    before = sorted(p.name for p in tmp_path.iterdir())
    for valid, test in ((0, 0), (1, 0), (-0.1, 0), (0.5, 0.5), (float("nan"), 0)):
        with pytest.raises(UserError, match=r"--valid 0\.001"):
            split([prefix], str(tmp_path / "o"), valid=valid, test=test)
    with pytest.raises(UserError, match=r"no document falls into .*o_valid"):
        split([prefix], str(tmp_path / "o"), valid=1e-9)
    wide = write(tmp_path / "w", [[1]], np.int32)
    with pytest.raises(UserError, match=r"d \(uint16\) and .*w \(int32\)"):
        split([prefix, wide], str(tmp_path / "o"), valid=0.5)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*before, "w.bin", "w.idx"])


def test_command_line(tmp_path, corpus, capsys):
    prefix, output = write(tmp_path / "d", corpus), str(tmp_path / "new" / "o")
    assert main(["--input", prefix, "--output-prefix", output, "--valid", "0.2"]) == 0
    shown = capsys.readouterr().out
    assert f"train with: --train-data-path {output}_train --valid-data-path {output}_valid" in shown
    summary = json.loads((tmp_path / "new" / "o_valid.json").read_text())
    assert summary["documents"] == sum(place(d) < 0.2 for d in corpus)
    assert summary["split_from"] == [prefix] and summary["valid"] == 0.2
    assert main(["--input", prefix, "--output-prefix", output, "--valid", "0.2"]) == 1
    assert "--overwrite" in capsys.readouterr().err
