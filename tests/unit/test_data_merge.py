"""Merging: nothing is lost, mixed up or left half-written."""

import json
import os
import struct
import subprocess

import numpy as np
import pytest

from fixedcode_megatron.data import merge as merging
from fixedcode_megatron.data.indexed import IndexedDatasetReader, IndexedDatasetWriter
from fixedcode_megatron.data.merge import merge
from fixedcode_megatron.data.natural import expand_prefixes, natural_key
from fixedcode_megatron.errors import UserError


def write(prefix, documents, dtype=np.uint16, modes=None):
    """One dataset; a document is a list of sequences."""
    with IndexedDatasetWriter(prefix, dtype, multimodal=modes is not None) as writer:
        for number, sequences in enumerate(documents):
            ids = [i for sequence in sequences for i in sequence]
            own = None if modes is None else modes[number]
            writer.add_document(ids, [len(sequence) for sequence in sequences], own)
        writer.commit()
    return str(prefix)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_boundaries_survive(tmp_path):
    """Case 18."""
    a = write(tmp_path / "a", [[[1, 2], [3]], [[4, 5]]])
    b = write(tmp_path / "b", [[[6]]])
    merge([a, b], str(tmp_path / "m"))
    merged = IndexedDatasetReader(tmp_path / "m")
    assert merged.document_indices.tolist() == [0, 2, 3, 4]
    assert merged.sequence_lengths.tolist() == [2, 1, 2, 1]
    assert merged.sequence_pointers.tolist() == [0, 4, 6, 10]
    assert merged.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert merged.sequence_modes is None


@pytest.mark.parametrize("multimodal", [False, True])
def test_same_bytes_as_megatron_core(tmp_path, monkeypatch, multimodal):
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    monkeypatch.setattr(merging, "_CHUNK", 7)  # many chunks
    rng = np.random.default_rng(3)
    prefixes = []
    for shard in range(4):
        counts = [rng.integers(0, 4) for _ in range(12)]
        documents = [[rng.integers(0, 60000, rng.integers(1, 9)) for _ in range(n)] for n in counts]
        modes = [rng.integers(0, 3, n) for n in counts] if multimodal else None
        prefixes.append(write(tmp_path / f"s{shard}", documents, modes=modes))
    builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), np.uint16, multimodal)
    for prefix in prefixes:
        builder.add_index(prefix)
    builder.finalize(str(tmp_path / "theirs.idx"))
    merge(prefixes, str(tmp_path / "ours"))
    for suffix in (".bin", ".idx"):
        ours, theirs = (tmp_path / f"{who}{suffix}" for who in ("ours", "theirs"))
        assert ours.read_bytes() == theirs.read_bytes()


def test_modes_are_kept_and_not_mixed_with_none(tmp_path):
    """Case 20."""
    a = write(tmp_path / "a", [[[1, 2], [3]]], modes=[[0, 1]])
    b = write(tmp_path / "b", [[[4]]], modes=[[2]])
    c = write(tmp_path / "c", [[[4]]])
    merge([a, b], str(tmp_path / "m"))
    assert IndexedDatasetReader(tmp_path / "m").sequence_modes.tolist() == [0, 1, 2]
    with pytest.raises(UserError, match=r"a and .*c only one has modes"):
        merge([a, c], str(tmp_path / "n"))


def test_mixed_types_are_named_or_converted(tmp_path):
    """Case 18."""
    a = write(tmp_path / "a", [[[1, 65535]]])
    b = write(tmp_path / "b", [[[7]]], dtype=np.int32)
    before = names(tmp_path)
    with pytest.raises(UserError, match=r"a is uint16, .*b is int32: .*--dtype int32"):
        merge([a, b], str(tmp_path / "m"))
    assert names(tmp_path) == before
    merge([a, b], str(tmp_path / "wide"), dtype="int32")
    assert (tmp_path / "wide.bin").read_bytes() == struct.pack("<3i", 1, 65535, 7)
    assert IndexedDatasetReader(tmp_path / "wide").sequence_pointers.tolist() == [0, 8]
    merge([a, b], str(tmp_path / "narrow"), dtype="uint16")
    assert (tmp_path / "narrow.bin").read_bytes() == struct.pack("<3H", 1, 65535, 7)
    large = write(tmp_path / "large", [[[65536]]], dtype=np.int32)
    before = names(tmp_path)
    with pytest.raises(UserError, match=r"large holds token id 65536, .* uint16 \(0 to 65535\)"):
        merge([a, large], str(tmp_path / "m"), dtype="uint16")
    assert names(tmp_path) == before


def test_order_of_a_folder_and_stray_files(tmp_path):
    """Case 18."""
    for number in (1, 2, 10):
        write(tmp_path / f"p_{number}", [[[number]]])
    (tmp_path / "README").write_text("not a dataset")
    (tmp_path / "p_3.bin.partial").write_text("left by a killed process")
    folder = str(tmp_path)
    output = str(tmp_path / "merged")
    assert expand_prefixes([folder]) == [f"{folder}/p_{n}" for n in (1, 2, 10)]
    listed = [f"{folder}/p_10", f"{folder}/p_1.bin", f"{folder}/p_2.idx"]
    assert expand_prefixes(listed) == [f"{folder}/p_{n}" for n in (10, 1, 2)]
    for glob in (f"{folder}/p_?", f"{folder}/p_?.idx", f"{folder}/p_?.*"):
        assert expand_prefixes([glob]) == [f"{folder}/p_1", f"{folder}/p_2"]
    merge(expand_prefixes([folder], exclude=output), output)
    assert IndexedDatasetReader(output).tokens.tolist() == [1, 2, 10]
    # Again: the output now lies in the folder and is not its own input.
    merge(expand_prefixes([folder], exclude=output), output, overwrite=True)
    assert IndexedDatasetReader(output).tokens.tolist() == [1, 2, 10]
    with pytest.raises(UserError, match="merged is the output itself"):
        expand_prefixes([f"{folder}/p_1", output], exclude=output)


def test_natural_order():
    ordered = ["a", "a1", "a1b", "a02", "a2", "a10", "b_9_2", "b_9_10", "b_10_1"]
    shuffled = sorted(ordered)
    assert shuffled != ordered
    assert sorted(shuffled, key=natural_key) == ordered


def test_an_earlier_merge_beside_its_parts_would_double_them(tmp_path):
    a, b = write(tmp_path / "a", [[[1]]]), write(tmp_path / "b", [[[2]]])
    merge([a, b], str(tmp_path / "first"))
    with pytest.raises(UserError, match=r"first was merged from .*a, which is an input too"):
        merge(expand_prefixes([str(tmp_path)]), str(tmp_path / "second"))
    assert not (tmp_path / "second.bin").exists()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["nothing"], r"nothing\.idx does not exist"),
        (["a", "./a"], "given twice"),
        (["half"], r"half\.idx does not exist"),
        (["empty"], "holds no dataset"),
        (["z*"], "matches no dataset"),
    ],
)
def test_refused_inputs(tmp_path, monkeypatch, inputs, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", [[[1]]])
    (tmp_path / "empty").mkdir()
    (tmp_path / "half.bin").write_bytes(b"ab")
    with pytest.raises(UserError, match=message):
        expand_prefixes(inputs)


def test_summary_and_different_tokenizers(tmp_path):
    prefixes = [write(tmp_path / name, [[[3, 9]], [[1]]]) for name in "ab"]
    for prefix, fingerprint in zip(prefixes, "xy", strict=True):
        facts = {"bin_bytes": 6, "tokenizer_fingerprint": fingerprint, "vocab_size": 10, "eod": 1}
        (tmp_path / f"{prefix}.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match=r"a and .*b were made with different tokenizers"):
        merge(prefixes, str(tmp_path / "m"))
    summary = merge(prefixes, str(tmp_path / "m"), mixed_tokenizers=True)
    assert summary == {
        "documents": 4, "sequences": 4, "tokens": 6, "tokens_per_document": 1.5,
        "max_token_id": 9, "dtype": "uint16", "bin_bytes": 12, "multimodal": False,
        "vocab_size": 10, "eod": 1, "merged_from": prefixes,
    }  # fmt: skip
    written = json.loads((tmp_path / "m.json").read_text())
    assert written.items() >= summary.items()


def test_a_shard_that_failed_is_missed(tmp_path):
    prefixes = [write(tmp_path / f"p_{number}", [[[number]]]) for number in (0, 1, 3)]
    for prefix, number in zip(prefixes, (0, 1, 3), strict=True):
        facts = {"bin_bytes": 2, "key": "text", "inputs": ["x"], "shard": [number, 5]}
        (tmp_path / f"{prefix}.json").write_text(json.dumps(facts))
    before = names(tmp_path)
    with pytest.raises(UserError, match=r"2 of 5 shards .*\(--shard-index 2, 4\)"):
        merge(prefixes, str(tmp_path / "m"))
    assert names(tmp_path) == before
    assert merge(prefixes, str(tmp_path / "m"), missing_shards=True)["documents"] == 3
    facts["shard"] = [0, 1]  # not a part of anything
    (tmp_path / "p_3.json").write_text(json.dumps(facts))
    assert merge(prefixes[2:], str(tmp_path / "n"))["documents"] == 1


def test_damaged_inputs_leave_nothing(tmp_path):
    a = write(tmp_path / "a", [[[1, 2]]])
    b = write(tmp_path / "b", [[[3, 4]]])
    (tmp_path / "b.bin").write_bytes(b"\3\0")
    before = names(tmp_path)
    with pytest.raises(UserError, match=r"b\.bin holds 2 bytes, its index describes 4"):
        merge([a, b], str(tmp_path / "m"))
    (tmp_path / "b.bin").write_bytes(b"\3\0\4\0")
    index = bytearray((tmp_path / "b.idx").read_bytes())
    index[-8] = 2  # the last document would end at sequence 2 of 1
    (tmp_path / "b.idx").write_bytes(index)
    with pytest.raises(UserError, match="do not end at its last sequence"):
        merge([a, b], str(tmp_path / "m"))
    assert names(tmp_path) == before


def test_a_full_disk_is_refused_beforehand(tmp_path, monkeypatch):
    a, b = write(tmp_path / "a", [[[1]]]), write(tmp_path / "b", [[[2]]])
    free = type("Usage", (), {"free": 100})
    monkeypatch.setattr(merging.shutil, "disk_usage", lambda _: free)
    with pytest.raises(UserError, match="the disk has"):
        merge([a, b], str(tmp_path / "new" / "m"))
    assert not (tmp_path / "new").exists()


def test_a_disk_that_fills_up_meanwhile(tmp_path, monkeypatch):
    """A tmpfs of 400 kB that seems to have room when the merge begins."""
    a, b = (write(tmp_path / name, [[[1] * 150_000]]) for name in "ab")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a tmpfs")
    try:
        with pytest.raises(UserError, match="the disk has"):
            merge([a, b], str(disk / "m"))
        free = type("Usage", (), {"free": 1 << 30})
        monkeypatch.setattr(merging.shutil, "disk_usage", lambda _: free)
        with pytest.raises(OSError, match="No space left on device"):
            merge([a, b], str(disk / "m"))
        assert not list(disk.iterdir())
    finally:
        subprocess.run(["umount", disk], check=True)
