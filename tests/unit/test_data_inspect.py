"""Figures, histograms, documents and verification of datasets."""

import json
import struct

import numpy as np
import pytest

from fixedcode_megatron.data import lengths as measuring
from fixedcode_megatron.data import verify as verifying
from fixedcode_megatron.data.indexed import IndexedDatasetReader, IndexedDatasetWriter
from fixedcode_megatron.data.inspect_command import main
from fixedcode_megatron.data.inspection import count_lengths, describe, parse_documents
from fixedcode_megatron.data.lengths import LengthCounts, document_lengths, text_histogram
from fixedcode_megatron.data.verify import verify
from fixedcode_megatron.errors import UserError

E = 256


def write(prefix, documents, dtype=np.uint16, modes=None):
    with IndexedDatasetWriter(prefix, dtype, multimodal=modes is not None) as writer:
        for number, sequences in enumerate(documents):
            ids = [i for sequence in sequences for i in sequence]
            own = None if modes is None else modes[number]
            writer.add_document(ids, [len(sequence) for sequence in sequences], own)
        writer.commit()
    return str(prefix)


@pytest.fixture
def three(tmp_path):
    """Documents of 3, 0 and 1 + 5 tokens."""
    return write(tmp_path / "d", [[[104, 105, E]], [], [[72], [195, 164, 33, 33, E]]])


def test_document_lengths(three, tmp_path):
    reader = IndexedDatasetReader(three)
    for chunk in (1, 2, 3, 100):
        assert np.concatenate(list(document_lengths(reader, chunk))).tolist() == [3, 0, 6]


def test_figures(three):
    reader = IndexedDatasetReader(three)
    assert describe(reader, count_lengths(reader)) == {
        "prefix": three, "dtype": "uint16", "documents": 3, "empty_documents": 1, "sequences": 3,
        "tokens": 9, "bin_bytes": 18, "idx_bytes": 34 + 12 * 3 + 8 * 4,
        "tokens_per_document": {"mean": 3.0, "median": 3, "p90": 6, "p99": 6, "max": 6},
    }  # fmt: skip


def test_quantiles_are_those_of_the_sorted_list(monkeypatch):
    monkeypatch.setattr(measuring, "_EXACT", 64)  # some lengths above, some below
    rng = np.random.default_rng(1)
    lengths = np.concatenate([rng.integers(0, 64, 300), rng.integers(64, 1000, 200)])
    counts = LengthCounts()
    for part in np.split(lengths, 5):
        counts.add(part)
    ordered = np.sort(lengths)
    for share in (0.01, 0.1, 0.5, 0.6, 0.61, 0.9, 0.99, 1.0):
        assert counts.quantile(share) == np.quantile(ordered, share, method="inverted_cdf"), share
    assert counts.tokens == lengths.sum() and counts.documents == 500
    bins = counts.bins()
    for low, high, number in bins:
        assert number == ((lengths >= low) & (lengths <= high)).sum()
    assert sum(number for _, _, number in bins) == 500


def test_text_histogram():
    counts = LengthCounts()
    counts.add(np.array([1] * 50 + [2, 3, 3] + [9]))
    assert [line.split() for line in text_histogram(counts).splitlines()] == [
        ["tokens", "documents"],
        ["1", "50", "#" * 50],
        ["2-3", "3", "###"],
        ["4-7", "0"],
        ["8-15", "1", "#"],
    ]


def test_documents_as_text_and_ids(three, capsys):
    flags = ["--tokenizer-type", "ByteLevelTokenizer"]
    assert main([three, "--documents", "0", "-1", *flags]) == 0
    shown = capsys.readouterr().out
    assert "--- document 0: 3 tokens\nhi\n--- document 2: 6 tokens, 2 sequences\nHä!!\n" in shown
    assert main([three, "--documents", "0:3", "--max-tokens", "2"]) == 0
    shown = capsys.readouterr().out
    assert "--- document 0: 3 tokens\n104 105\n[... 1 more tokens]\n" in shown
    assert "--- document 1: 0 tokens\n\n--- document 2: 6 tokens, 2 sequences\n72 195\n" in shown


def test_document_numbers():
    assert parse_documents(["1", "-1", "2:4", "-2:"], 5) == [1, 4, 2, 3, 3, 4]
    for wrong in ("5", "-6", "x", "1:2:3", ""):
        with pytest.raises(UserError, match="--documents"):
            parse_documents([wrong], 5)


def test_picture(three, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main([three, "--histogram", str(tmp_path / "new" / "h.png")]) == 0
    assert (tmp_path / "new" / "h.png").read_bytes().startswith(b"\x89PNG")


def test_json_and_modes(tmp_path, capsys):
    prefix = write(tmp_path / "m", [[[1, 2], [3]], [[4]]], modes=[[0, 1], [0]])
    assert main([prefix, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["modes"] == {"0": 2, "1": 1}


def test_a_good_dataset_is_verified(three, capsys):
    flags = ["--verify", "--tokenizer-type", "ByteLevelTokenizer"]
    assert main([three, *flags]) == 0
    shown = capsys.readouterr().out
    assert "all 2 documents end with 256" in shown and "vocabulary of 257" in shown
    assert "documents without tokens: 1" in shown and "no problem found" in shown


def test_numbers_without_a_tokenizer(tmp_path, capsys):
    prefix = write(tmp_path / "d", [[[0, 99, 100]], [[5, 100]]])
    null = ["--tokenizer-type", "NullTokenizer", "--vocab-size", "100"]
    assert main([prefix, "--verify", "--documents", "0", *null]) == 0
    shown = capsys.readouterr().out
    assert "vocabulary of 101" in shown and "all 2 documents end with 100" in shown
    assert "--- document 0: 3 tokens\n0 99 100\n" in shown
    assert main([prefix, "--verify", "--vocab-size", "100"]) == 1
    assert "ids outside 0 to 99: 2, the first is 100 in document 0" in capsys.readouterr().out


@pytest.mark.parametrize("chunk", [1, 2, 1000])
def test_ids_and_document_ends(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(verifying, "_CHUNK", chunk)
    prefix = write(tmp_path / "d", [[[1, 9]], [], [[2], [700, 3]], [[800, 9]]])
    assert verify(prefix, vocab_size=801).problems == []
    assert verify(prefix, vocab_size=700, eod=9).problems == [
        "ids outside 0 to 699: 2, the first is 700 in document 2",
        "1 of 3 documents do not end with 9, the first is document 2",
    ]
    none = verify(prefix, vocab_size=801, eod=5)
    assert none.problems == [] and "no document ends with 5" in none.notes[-1]


def test_negative_ids(tmp_path):
    prefix = write(tmp_path / "d", [[[1, 2]]], np.int32)
    (tmp_path / "d.bin").write_bytes(struct.pack("<2i", 1, -7))
    assert verify(prefix).problems == ["negative ids: 1, the first is -7 in document 0"]


def damaged(prefix, tmp_path, at, value, form):
    index = bytearray((tmp_path / "d.idx").read_bytes())
    struct.pack_into(form, index, at, value)
    (tmp_path / "d.idx").write_bytes(index)
    return verify(prefix).problems


@pytest.mark.parametrize(
    ("at", "value", "form", "problem"),
    [
        (34, -1, "<i", "sequence 0 has length -1"),
        (34 + 12 + 8, 8, "<q", "sequence 1 is said to begin at byte 8, the lengths before it give"),
        (34 + 36, 1, "<q", "documents cover sequences 1 to 3, there are 0 to 3"),
        (34 + 36 + 8, 3, "<q", "document 1 ends before it begins"),
        (34 + 36 + 24, 2, "<q", "documents cover sequences 0 to 2, there are 0 to 3"),
        (26, 5, "<Q", "its header asks for"),
        (34 + 8, 6, "<i", "holds 18 bytes, d.idx describes 20"),
    ],
)
def test_damage_to_the_index_is_found(three, tmp_path, at, value, form, problem):
    problems = damaged(three, tmp_path, at, value, form)
    assert problems and problem in problems[0]


def test_missing_or_short_files(three, tmp_path, capsys):
    (tmp_path / "d.bin").write_bytes(b"12")
    assert main([three, "--verify"]) == 1
    assert "PROBLEM" in capsys.readouterr().out
    (tmp_path / "d.bin").unlink()
    assert main([three, "--verify"]) == 1
    assert "d.bin does not exist" in capsys.readouterr().err


def test_the_summary_is_used_and_checked(three, tmp_path):
    facts = {"bin_bytes": 18, "vocab_size": 200, "eod": E, "append_eod": True, "documents": 4}
    (tmp_path / "d.json").write_text(json.dumps(facts))
    assert verify(three).problems == [
        "ids outside 0 to 199: 2, the first is 256 in document 0",
        "the summary says documents 4, the files say 3",
    ]
    facts |= {"vocab_size": 257, "documents": 3, "eod": 5}
    (tmp_path / "d.json").write_text(json.dumps(facts))
    assert verify(three).problems == ["2 of 2 documents do not end with 5, the first is document 0"]
    facts["bin_bytes"] = 20
    (tmp_path / "d.json").write_text(json.dumps(facts))
    assert "describes another file" in verify(three).notes[0]
