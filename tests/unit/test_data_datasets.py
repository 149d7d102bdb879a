"""Datasets for training: the samples are megatron-core's, the mistakes end with a message."""

import json
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fixedcode_megatron.data.datasets import build_datasets
from fixedcode_megatron.data.indexed import IndexedDatasetWriter, bin_path
from fixedcode_megatron.data.plans import refuse_too_many_sequences
from fixedcode_megatron.data.segments import attention_mask, positions, segment_ends
from fixedcode_megatron.data.token_check import check_token_ids
from fixedcode_megatron.errors import UserError

E = 0
TOKENIZER = SimpleNamespace(vocab_size=100, eod_id=E, unique_identifiers={"fingerprint": "x"})


@pytest.fixture(autouse=True)
def one_thread():
    """torch.tril, which megatron-core calls per sample, waits for its threads on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def write(prefix, documents, dtype=np.uint16, overwrite=False):
    with IndexedDatasetWriter(prefix, dtype, overwrite=overwrite) as writer:
        for ids in documents:
            writer.add_document(ids)
        writer.commit()
    return str(prefix)


def many(prefix, count=60, seed=0, high=100):
    rng = np.random.default_rng(seed)
    documents = [[*rng.integers(1, high, rng.integers(1, 40)), E] for _ in range(count)]
    return write(prefix, documents)


def build(prefix, samples, seq_length=8, split="100,0,0", seed=1234, vocab_size=100, **options):
    paths = [prefix] if isinstance(prefix, str) else prefix
    data = SimpleNamespace(data_path=paths, split=split, **options)
    return build_datasets(
        data, TOKENIZER, seq_length=seq_length, seed=seed, samples=samples, vocab_size=vocab_size
    )


def equal(ours, theirs, keys):
    assert len(ours) == len(theirs)
    for i in range(len(ours)):
        for key in keys:
            assert torch.equal(ours[i][key], theirs[i][key]), (i, key)


def stock(blend, samples, split, seq_length=8, **flags):
    """The same through megatron-core's own builder and dataset class."""
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    names = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
    flags = {name: flags.get(name, False) for name in names}
    config = GPTDatasetConfig(
        random_seed=1234, sequence_length=seq_length, blend=blend, split=split, path_to_cache="",
        tokenizer=SimpleNamespace(vocab_size=100, eod=E, unique_identifiers={}),
        create_attention_mask=flags["reset_attention_mask"], **flags,
    )  # fmt: skip
    return BlendedMegatronDatasetBuilder(GPTDataset, samples, lambda: True, config).build()


KEYS = ("tokens", "labels", "loss_mask", "position_ids")


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"reset_position_ids": True, "eod_mask_loss": True},
        {"reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": True},
    ],
)
def test_samples_are_megatron_cores(tmp_path, flags):
    prefix = many(tmp_path / "d")
    keys = (*KEYS, "attention_mask") if "reset_attention_mask" in flags else KEYS
    for samples in ((100, 10, 3), (700, 55, 40)):  # within an epoch, and several epochs
        theirs = stock(([prefix], None), samples, "80,15,5", **flags)
        for ours, other in zip(
            build(prefix, samples, split="80,15,5", **flags), theirs, strict=True
        ):
            equal(ours, other, keys)


def test_blends_are_megatron_cores(tmp_path):
    a, b = many(tmp_path / "a", 60), many(tmp_path / "b", 40, seed=1)
    theirs = stock(([a, b], [0.7, 0.3]), (200, 20, 0), "90,10,0")
    ours = build(["0.7", a, "0.3", b], (200, 20, 0), split="90,10,0")
    equal(ours[0], theirs[0], KEYS)
    equal(ours[1], theirs[1], KEYS)
    assert ours[2] is None
    theirs = stock(([a, b], None), (100, 12, 0), "90,10,0")
    ours = build([a, b], (100, 12, 0), split="90,10,0")
    equal(ours[0], theirs[0], KEYS)
    equal(ours[1], theirs[1], KEYS)
    # Where one pass is not enough, megatron-core gives fewer samples; ours repeats in proportion.
    assert len(build([a, b], (900, 0, 0))[0]) >= 900


def test_own_paths_for_each_split(tmp_path):
    train, valid = many(tmp_path / "a"), write(tmp_path / "v", [range(1, 10)])
    data = SimpleNamespace(train_data_path=[train], valid_data_path=[valid])
    built = build_datasets(data, TOKENIZER, seq_length=8, seed=1, samples=(50, 1, 5))
    assert built[1][0]["tokens"].tolist() == list(range(1, 9))
    assert len(built[0]) >= 50 and built[2] is None
    data.data_path = [train]
    with pytest.raises(UserError, match="not both"):
        build_datasets(data, TOKENIZER, seq_length=8, seed=1, samples=(50, 1, 5))
    with pytest.raises(UserError, match="--data-path PREFIX"):
        build_datasets(SimpleNamespace(), TOKENIZER, seq_length=8, seed=1, samples=(50, 1, 5))


@pytest.mark.parametrize(("tokens", "count"), [(9, 1), (16, 1), (17, 2)])
def test_samples_of_one_pass(tmp_path, tokens, count):
    """Case 22."""
    prefix = write(tmp_path / "d", [range(1, tokens + 1)])
    dataset, _, _ = build(prefix, (None, 0, 0))
    assert len(dataset) == count
    ids = [dataset[i]["tokens"].tolist() for i in range(count)]
    assert sorted(ids)[0] == list(range(1, 9))
    sample = next(dataset[i] for i in range(count) if dataset[i]["tokens"][0] == 1)
    assert sample["labels"].tolist() == list(range(2, 10))


def test_data_shorter_than_a_sample(tmp_path):
    """Case 22."""
    prefix = write(tmp_path / "d", [range(1, 9)])
    with pytest.raises(UserError, match="has 8 tokens, one sample needs 9"):
        build(prefix, (None, 0, 0))
    prefix = write(tmp_path / "four", [[1, 2, 3, 4]])
    dataset, valid, test = build(prefix, (3, 0, 0))
    assert len(dataset) == 3 and valid is test is None
    assert dataset[0]["tokens"].tolist()[:4] in ([1, 2, 3, 4],)
    with pytest.raises(UserError, match="over 1000000 times"):
        build(prefix, (600_000, 0, 0))


def test_a_split_without_tokens_is_refused_at_once(tmp_path):
    """Case 21."""
    two = write(tmp_path / "two", [range(1, 21)] * 2)
    started = time.monotonic()
    with pytest.raises(
        UserError, match=r"the valid split of .*two.*98,1,1.*none of its 2 documents"
    ):
        build(two, (4, 4, 4), split="98,1,1")
    with IndexedDatasetWriter(tmp_path / "hollow", np.uint16) as writer:
        writer.add_document(range(1, 21))
        writer.add_document([], lengths=[0])
        writer.commit()
    with pytest.raises(UserError, match=r"the valid split of .*hollow.* gets no tokens"):
        build(str(tmp_path / "hollow"), (4, 4, 0), split="50,50,0")
    assert time.monotonic() - started < 1
    # Nothing wanted, or no share given: nothing is built, and training goes on.
    train, valid, test = build(two, (4, 0, 0), split="98,1,1")
    assert len(train) == 4 and valid is None and test is None
    assert build(two, (4, 4, 0), split="100,0,0")[1] is None


@pytest.mark.parametrize("pad", [E, 9, None])
def test_no_real_token_is_taken_for_padding(tmp_path, monkeypatch, pad):
    """Case 25: The tokenizer's pad is the end of document, or an id that occurs in the data."""
    monkeypatch.setattr(TOKENIZER, "pad", pad, raising=False)
    monkeypatch.setattr(TOKENIZER, "eos", E, raising=False)
    prefix = write(tmp_path / "d", [[5, 6, 7, E], [8, 9, 10, 11, 12]])
    in_order = set()
    for seed in range(8):  # an epoch begins with either document
        dataset, _, _ = build(prefix, (None, 0, 0), seq_length=4, seed=seed)
        rows = {tuple(dataset[i]["tokens"].tolist()): dataset[i] for i in range(len(dataset))}
        assert all(row["loss_mask"].tolist() == [1, 1, 1, 1] for row in rows.values())
        in_order.add((5, 6, 7, E) in rows)
        if (5, 6, 7, E) in rows:
            assert rows[(5, 6, 7, E)]["labels"].tolist() == [6, 7, E, 8]
            assert rows[(8, 9, 10, 11)]["labels"].tolist() == [9, 10, 11, 12]
        else:
            assert rows[(8, 9, 10, 11)]["labels"].tolist() == [9, 10, 11, 12]
            assert rows[(12, 5, 6, 7)]["labels"].tolist() == [5, 6, 7, E]
    assert in_order == {True, False}


def test_padding_goes_by_position(tmp_path, monkeypatch):
    """Case 25: Token 0 is real, the filling at the end of the data is not."""
    prefix = write(tmp_path / "d", [[5, 6, 0, 8, 9, 0, 0]])
    dataset, _, _ = build(prefix, (None, 0, 0), seq_length=4)
    text = np.array([0, 9, 0, -1, -1])
    monkeypatch.setattr(dataset, "_query_document_sample_shuffle_indices", lambda i: (text, None))
    sample = dataset[0]
    assert sample["tokens"].tolist() == [0, 9, 0, 0]
    assert sample["labels"].tolist() == [9, 0, 0, 0]
    assert sample["loss_mask"].tolist() == [1, 1, 0, 0]


def test_documents_inside_a_sample():
    """Case 27."""
    tokens = torch.tensor([5, 6, E, 7, 8, E, 9, 10])
    assert positions(tokens, E).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert segment_ends(tokens, E).tolist() == [0, 3, 6, 8]
    assert segment_ends(tokens[:6], E).tolist() == [0, 3, 6]  # ends on E: no empty segment
    assert segment_ends(tokens[:2], E).tolist() == [0, 2]
    seen = ~attention_mask(tokens, E)[0]
    assert seen[3].tolist() == [False] * 3 + [True] + [False] * 4
    assert seen[5].tolist() == [False] * 3 + [True] * 3 + [False] * 2
    assert seen[2].tolist() == [True] * 3 + [False] * 5


def test_no_loss_where_the_input_is_eod(tmp_path):
    """Case 27."""
    prefix = write(tmp_path / "d", [[5, 6, E, 7, 8, E, 9, 10, 11]])
    dataset, _, _ = build(prefix, (1, 0, 0), eod_mask_loss=True)
    assert dataset[0]["loss_mask"].tolist() == [1, 1, 0, 1, 1, 0, 1, 1]
    nothing = SimpleNamespace(vocab_size=100, eod_id=None, unique_identifiers={})
    with pytest.raises(UserError, match="--eod-mask-loss needs a tokenizer"):
        build_datasets(
            SimpleNamespace(data_path=[prefix], eod_mask_loss=True),
            nothing, seq_length=8, seed=1, samples=(1, 0, 0),
        )  # fmt: skip


def test_ids_above_the_vocabulary(tmp_path):
    prefix = write(tmp_path / "d", [range(1, 90), [99]])
    with pytest.raises(UserError, match=r"token id 99, but the model's vocabulary has 99 ids.*100"):
        build(prefix, (4, 0, 0), vocab_size=99)
    assert len(build(prefix, (4, 0, 0), vocab_size=100)[0]) >= 4
    # A summary of this very file is believed; one of another file is not.
    summary = bin_path(prefix).with_suffix(".json")
    size = bin_path(prefix).stat().st_size
    summary.write_text(json.dumps({"max_token_id": 5000, "bin_bytes": size}))
    with pytest.raises(UserError, match="token id 5000"):
        check_token_ids([prefix], 100)
    summary.write_text(json.dumps({"max_token_id": 3, "bin_bytes": size + 2}))
    with pytest.raises(UserError, match="token id 99"):
        check_token_ids([prefix], 99)


def test_large_files_are_sampled_at_both_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("fixedcode_megatron.data.token_check._SCAN_TOKENS", 40)
    monkeypatch.setattr("fixedcode_megatron.data.token_check._WINDOW", 10)
    for place in (0, 999):
        ids = np.ones(1000, dtype=int)
        ids[place] = 77
        with pytest.raises(UserError, match="token id 77"):
            check_token_ids([write(tmp_path / f"d{place}", [ids])], 50)


def cache_of(prefix):
    (folder,) = [p for p in bin_path(prefix).parent.glob("sample_index/train-*") if p.is_dir()]
    return folder


def test_cache_is_used_and_a_damaged_one_is_made_again(tmp_path, caplog):
    """Case 26."""
    prefix = many(tmp_path / "d")
    first = [s["tokens"] for s in map(build(prefix, (60, 0, 0))[0].__getitem__, range(60))]
    folder = cache_of(prefix)
    stamps = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    again = build(prefix, (60, 0, 0))[0]
    assert isinstance(again.sample_index, np.memmap)
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == stamps
    for victim in ("sample_index", "shuffle_index", "manifest"):
        (file,) = folder.glob(f"*{victim}*")
        os.truncate(file, file.stat().st_size // 2)
        caplog.clear()
        rebuilt = build(prefix, (60, 0, 0))[0]
        assert "damaged" in caplog.text
        assert all(torch.equal(rebuilt[i]["tokens"], first[i]) for i in range(60))
    assert torch.equal(again[3]["tokens"], first[3])  # its maps outlive the replaced files
    assert [p.name for p in folder.parent.iterdir() if "partial" in p.name] == []


def test_rewritten_data_does_not_meet_an_old_index(tmp_path):
    """Case 26."""
    prefix = write(tmp_path / "d", [range(1, 41)])
    build(prefix, (4, 0, 0))
    write(prefix, [range(50, 80)], overwrite=True)
    dataset = build(prefix, (4, 0, 0))[0]
    assert all(min(dataset[i]["tokens"]) >= 50 for i in range(len(dataset)))
    write(prefix, [range(20, 50)], overwrite=True)  # same size: the time differs
    dataset = build(prefix, (4, 0, 0))[0]
    assert all(max(dataset[i]["tokens"]) < 50 for i in range(len(dataset)))


def test_cache_folder_that_cannot_be_written(tmp_path):
    prefix = many(tmp_path / "d")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--data-cache-path"):
        build(prefix, (4, 0, 0), data_cache_path=str(tmp_path / "file" / "cache"))


@pytest.mark.parametrize(("epochs", "used"), [((1 << 31) - 1, "32"), (1 << 31, "64")])
def test_documents_times_epochs_do_not_wrap(monkeypatch, epochs, used):
    """Case 17: The index that counts documents over all epochs is 64 bits wide from 2^31 on."""
    from megatron.core.datasets import helpers

    calls = []
    for width in ("32", "64"):
        monkeypatch.setattr(
            helpers,
            f"build_sample_idx_int{width}",
            lambda *_, width=width: calls.append(width) or np.zeros((1, 2), np.int64),
        )
    documents = np.broadcast_to(np.int32(0), epochs)  # one document, takes no memory
    helpers.build_sample_idx(np.array([5], np.int32), documents, 8, epochs, 5)
    assert calls == [used]


def test_more_sequences_than_int32_numbers_are_refused():
    refuse_too_many_sequences("d", (1 << 31) - 1)
    with pytest.raises(UserError, match=r"d has 2,147,483,648 sequences"):
        refuse_too_many_sequences("d", 1 << 31)


def test_more_datasets_than_int16_numbers_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fixedcode_megatron.data.plans.MAX_DATASETS", 1)
    a, b = many(tmp_path / "a", 3), many(tmp_path / "b", 3)
    with pytest.raises(UserError, match=r"2 datasets, a blend can have 1: merge some"):
        build([a, b], (4, 0, 0))


def test_a_rank_that_loads_holds_no_list_of_documents(tmp_path):
    dataset = build(many(tmp_path / "d"), (60, 0, 0))[0]
    assert len(dataset.indices) == 0 and isinstance(dataset.document_index, np.memmap)


def test_global_generators_are_not_touched(tmp_path):
    prefix = many(tmp_path / "d")
    np.random.seed(1)
    torch.manual_seed(1)
    before = (np.random.get_state()[1].copy(), torch.get_rng_state())
    build(prefix, (300, 0, 0))[0][0]
    assert np.array_equal(before[0], np.random.get_state()[1])
    assert torch.equal(before[1], torch.get_rng_state())
