"""preprocess() in this process: engines that fail, formats, sentences, shards, limits, fuzz."""

import bz2
import gzip
import itertools
import json
import lzma
import random
import sys
import types
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import tokenizers
import zstandard

from fixedcode_megatron.data import engines
from fixedcode_megatron.data.bpe import train_byte_level_bpe
from fixedcode_megatron.data.hub import HubDataset
from fixedcode_megatron.data.indexed import IndexedDatasetReader
from fixedcode_megatron.data.merge import merge
from fixedcode_megatron.data.preprocess import PreprocessOptions, preprocess
from fixedcode_megatron.errors import UserError

TEXT = "hello world, hi there 12 foxes  3 jump. Over the lazy dog\n\n" * 4


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    """A folder with a BPE of 300 ids, and the library's own tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_byte_level_bpe([TEXT], 290, folder / "tokenizer.json", progress=False)
    inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.encode_special_tokens = True
    return folder, inner


def run(tmp_path, tokenizer, *inputs, **options):
    options = {"append_eod": True, "workers": 0, "progress": False, "overwrite": True} | options
    return preprocess(
        PreprocessOptions(
            input=[str(path) for path in inputs],
            output_prefix=str(tmp_path / "out/o"),
            tokenizer_model=str(tokenizer),
            **options,
        )
    )


def write(path, texts):
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts), encoding="utf-8")
    return path


def documents(prefix):
    reader = IndexedDatasetReader(prefix)
    ends = reader.document_indices.tolist()
    return [[reader[i].tolist() for i in range(a, b)] for a, b in itertools.pairwise(ends)]


def expected(inner, texts):
    return [[[*inner.encode(t, add_special_tokens=False).ids, 0]] for t in texts if t]


class WrongEngine(engines.Engine):
    """Wrong ids (or a crash) from the `after`-th document on."""

    def __init__(self, inner, after, crash=False):
        self.inner, self.after, self.crash = inner, after, crash

    def encode(self, text):
        texts = text.decode().split(engines.END)[:-1]
        encoded = [self.inner.encode(t, add_special_tokens=False).ids for t in texts]
        self.after -= len(texts)
        if self.after < 0 and encoded[-1]:
            if self.crash:
                raise RuntimeError("panicked")
            encoded[-1][-1] = 255
        end = self.inner.get_vocab_size() + 256
        return np.array([i for ids in encoded for i in (*ids, end)], np.uint32)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("after", [0, 400])
def test_an_engine_that_goes_wrong_is_replaced(tmp_path, bpe, monkeypatch, caplog, after, crash):
    """At the first sample, or much later when single documents are still compared."""
    folder, inner = bpe
    builders = {"gigatoken": lambda _: WrongEngine(inner, after, crash)}
    monkeypatch.setattr(engines, "_BUILDERS", builders | {"fastokens": lambda _: 1 / 0})
    monkeypatch.setattr("fixedcode_megatron.data.sources.BLOCK_BYTES", 1000)
    monkeypatch.setattr(
        "fixedcode_megatron.data.sources.line_items.__defaults__", (1000,), raising=False
    )
    texts = [TEXT[: 10 + i] for i in range(200)] * 3
    with caplog.at_level("WARNING"):
        (summary,) = run(tmp_path, folder, write(tmp_path / "x.jsonl", texts))
    assert summary["tokenizer_engine"] == "hf"
    assert documents(tmp_path / "out/o_text_document") == expected(inner, texts)
    assert "gigatoken is not used" in caplog.text
    assert ("panicked" in caplog.text) == crash


def test_what_an_engine_says_of_a_new_character_is_compared(tmp_path, monkeypatch, caplog):
    """gigatoken knows the letter U+088F, HF tokenizers does not; here it is made to deny it.

    The ids of this text are the same either way.
    """
    train_byte_level_bpe(["it's a fox's"] * 20, 262, tmp_path / "t/tokenizer.json", progress=False)
    name = "fixedcode_megatron.data.unassigned.UnassignedCharacters._leaves_s_alone"
    monkeypatch.setattr(name, lambda _, code: code in (0x378, 0x88F))
    lines = write(tmp_path / "x.jsonl", ["it's \u088f x"])
    with caplog.at_level("WARNING"):
        (summary,) = run(tmp_path, tmp_path / "t", lines)
    assert summary["tokenizer_engine"] == "fastokens"
    assert "gigatoken is not used" in caplog.text
    assert r"""in a text that begins "\u088f's""" in caplog.text


def test_an_engine_asked_for_by_name_that_cannot_be_had(tmp_path, bpe, monkeypatch):
    monkeypatch.setitem(engines._BUILDERS, "gigatoken", lambda _: __import__("no_such_library"))
    lines = write(tmp_path / "x.jsonl", ["hi"])
    with pytest.raises(UserError, match=r"--tokenizer-engine gigatoken: .*pip install gigatoken"):
        run(tmp_path, bpe[0], lines, tokenizer_engine="gigatoken")
    assert not list((tmp_path / "out").iterdir())
    (summary,) = run(tmp_path, bpe[0], lines)
    assert summary["tokenizer_engine"] == "fastokens"


def test_the_same_documents_in_every_format(tmp_path, bpe):
    """Case 10."""
    folder, inner = bpe
    texts = [f"{TEXT[i : i + 50]} {i}" for i in range(12)]
    data = write(tmp_path / "x.jsonl", texts).read_bytes()
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(data))
    (tmp_path / "x.jsonl.xz").write_bytes(lzma.compress(data))
    (tmp_path / "x.jsonl.bz2").write_bytes(bz2.compress(data))
    (tmp_path / "x.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(data))
    table = pa.table({"text": texts, "n": list(range(12))})
    pa.parquet.write_table(table, tmp_path / "x.parquet", row_group_size=5)
    with (
        pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    for name in ("parts", "texts"):
        (tmp_path / name).mkdir()
    write(tmp_path / "parts/p_2.jsonl", texts[:5])
    write(tmp_path / "parts/p_10.jsonl", texts[5:])
    for i, text in enumerate(texts):
        (tmp_path / f"texts/{i}.txt").write_text(text)
    inputs = [*sorted(tmp_path.glob("x.*")), tmp_path / "parts", tmp_path / "texts"]
    assert len(inputs) == 9
    for path in inputs:
        run(tmp_path, folder, path)
        found = documents(tmp_path / "out/o_text_document")
        assert found == expected(inner, texts), path
    run(tmp_path, folder, tmp_path / "parts/p_*.jsonl", workers=3)
    assert documents(tmp_path / "out/o_text_document") == expected(inner, texts)


def test_sentences_are_sequences(tmp_path, bpe):
    """Case 9."""
    folder, inner = bpe
    texts = ["A one. B two.", "", "Mr. X is here? Yes.", "no end"]
    (summary,) = run(tmp_path, folder, write(tmp_path / "x.jsonl", texts), split_sentences=True)
    sentences = [["A one.", "B two."], ["Mr. X is here?", "Yes."], ["no end"]]
    wanted = [[inner.encode(s).ids for s in document] for document in sentences]
    for document in wanted:
        document[-1].append(0)
    assert documents(tmp_path / "out/o_text_sentence") == wanted
    assert (summary["documents"], summary["sequences"]) == (3, 5)


def test_nltk_is_named_when_it_is_missing(tmp_path, bpe, monkeypatch):
    """Case 9."""
    monkeypatch.setitem(sys.modules, "nltk.tokenize", None)
    lines = write(tmp_path / "x.jsonl", ["A one. B two."])
    with pytest.raises(UserError, match="pip install nltk"):
        run(tmp_path, bpe[0], lines, split_sentences=True, sentence_splitter="nltk")

    def punkt(language):
        raise LookupError

    module = types.SimpleNamespace(PunktTokenizer=punkt)
    monkeypatch.setitem(sys.modules, "nltk.tokenize", module)
    with pytest.raises(UserError, match="punkt_tab for --lang german"):
        run(tmp_path, bpe[0], lines, split_sentences=True, sentence_splitter="nltk", lang="german")


def test_line_breaks_between_sentences_can_stay(tmp_path, bpe):
    """Megatron-LM's --keep-newlines: they end the sentence before them."""
    folder, inner = bpe
    lines = write(tmp_path / "x.jsonl", ["  A one.\n\nB two.  C three.\n", "no end\nat all"])
    run(tmp_path, folder, lines, split_sentences=True, keep_newlines=True, append_eod=False)
    sentences = [["A one.\n\n", "B two.  ", "C three."], ["no end\nat all"]]
    wanted = [[inner.encode(s).ids for s in document] for document in sentences]
    assert documents(tmp_path / "out/o_text_sentence") == wanted
    with pytest.raises(UserError, match="--keep-newlines is for --split-sentences"):
        run(tmp_path, folder, lines, keep_newlines=True)


def test_sentences_by_nltk(tmp_path, bpe, monkeypatch):
    """NLTK itself, with parameters that it learned here from a text full of one abbreviation."""
    nltk = pytest.importorskip("nltk")
    from nltk.tokenize import punkt

    text = "The fox saw approx. five dogs. A dog ran approx. two miles. They ate at noon. "
    trainer = punkt.PunktTrainer(text * 30)
    data = tmp_path / "nltk/tokenizers/punkt_tab/german"
    data.mkdir(parents=True)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "nltk")])
    punkt.save_punkt_params(trainer.get_params(), str(data))
    folder, inner = bpe
    lines = write(tmp_path / "x.jsonl", ["We met approx. ten foxes.\nThey ran."])
    how = {"split_sentences": True, "sentence_splitter": "nltk", "append_eod": False}
    for keep, first in (
        (False, "We met approx. ten foxes."),
        (True, "We met approx. ten foxes.\n"),
    ):
        run(tmp_path, folder, lines, **how, lang="german", keep_newlines=keep)
        wanted = [[inner.encode(s).ids for s in (first, "They ran.")]]
        assert documents(tmp_path / "out/o_text_sentence") == wanted
    with pytest.raises(UserError, match="punkt_tab for --lang english is not installed"):
        run(tmp_path, folder, lines, **how)


@pytest.mark.parametrize("limit", [1, 10, 57, 100000])
@pytest.mark.parametrize("sentences", [False, True])
def test_max_tokens_ends_after_the_document_that_reaches_it(tmp_path, bpe, limit, sentences):
    folder, _ = bpe
    lines = write(tmp_path / "x.jsonl", [f"Hi. There are {i} foxes." * (i % 3) for i in range(30)])
    name = f"out/o_text_{'sentence' if sentences else 'document'}"
    run(tmp_path, folder, lines, split_sentences=sentences)
    whole = documents(tmp_path / name)
    sizes = np.cumsum([sum(map(len, document)) for document in whole])
    keep = min(int(np.searchsorted(sizes, limit)) + 1, len(whole))
    (summary,) = run(tmp_path, folder, lines, max_tokens=limit, split_sentences=sentences)
    assert documents(tmp_path / name) == whole[:keep]
    assert summary["tokens"] == sizes[keep - 1]


def test_shards(tmp_path, bpe):
    folder, inner = bpe
    texts = [f"number {i}" for i in range(20)]
    lines = write(tmp_path / "x.jsonl", texts)
    found = []
    for index in range(3):
        run(tmp_path, folder, lines, num_shards=3, shard_index=index)
        prefix = tmp_path / f"out/o_{index:05d}-of-00003_text_document"
        part = documents(prefix)
        assert 5 <= len(part) <= 8
        found += part
    assert found == expected(inner, texts)
    one = write(tmp_path / "one.jsonl", ["hi"])
    for _ in range(2):  # again, too
        assert run(tmp_path, folder, one, num_shards=3, shard_index=2) == []
    with pytest.raises(UserError, match="give 0 to 2"):
        run(tmp_path, folder, lines, num_shards=3, shard_index=3)


def test_merging_does_not_miss_shards_without_documents(tmp_path, bpe):
    folder, inner = bpe
    one = write(tmp_path / "one.jsonl", ["hi"])
    for index in range(3):
        run(tmp_path, folder, one, num_shards=3, shard_index=index)
    (whole,) = [path.with_suffix("") for path in (tmp_path / "out").glob("*.idx")]
    summaries = sorted((tmp_path / "out").glob("*.json"))
    assert sorted(json.loads(path.read_text())["documents"] for path in summaries) == [0, 0, 1]
    merge([str(whole)], str(tmp_path / "m"))
    assert documents(tmp_path / "m") == expected(inner, ["hi"])
    # An empty shard of another run in the folder, or of a key that is not merged, is none of ours.
    for name, change in (("a", {"inputs": ["other"]}), ("b", {"key": "title"})):
        facts = json.loads(next(p for p in summaries if p.stem != whole.name).read_text())
        path = tmp_path / f"out/{name}_00001-of-00003_text_document.json"
        path.write_text(json.dumps(facts | change))
    merge([str(whole)], str(tmp_path / "o"))
    empty = next(path for path in summaries if not path.with_suffix(".idx").exists())
    empty.unlink()  # as if that shard had failed
    with pytest.raises(UserError, match="1 of 3 shards"):
        merge([str(whole)], str(tmp_path / "n"))


def test_overwriting_by_an_empty_shard_leaves_no_old_documents(tmp_path, bpe):
    folder, _ = bpe
    many, one = (
        write(tmp_path / f"{name}.jsonl", texts)
        for name, texts in (("many", ["word " * 9] * 9), ("one", ["hi"]))
    )
    (summary,) = run(tmp_path, folder, many, num_shards=3, shard_index=2)
    assert summary["documents"] > 0
    assert run(tmp_path, folder, one, num_shards=3, shard_index=2) == []
    assert [path.suffix for path in (tmp_path / "out").iterdir()] == [".json"]


class FakeDataset:
    """What of `datasets` is used: a table that slices to a dict of lists, or a stream."""

    column_names = ("id", "text")
    _fingerprint = "f"

    def __init__(self, texts, streaming):
        self.texts, self.asked = texts, []
        if not streaming:
            self.__class__ = type("Sized", (FakeDataset,), {"__len__": lambda s: len(s.texts)})

    def select_columns(self, names):
        assert names == ["text"]
        return self

    def __getitem__(self, rows):
        return {"text": self.texts[rows]}

    def skip(self, count):
        return iter([{"text": t} for t in self.texts[count:]])

    def __iter__(self):
        return self.skip(0)


@pytest.mark.parametrize("streaming", [False, True])
def test_hugging_face_datasets(tmp_path, bpe, monkeypatch, streaming):
    folder, inner = bpe
    texts = [f"row {i}" for i in range(700)]
    calls = []

    def load(name, config, *, split, streaming):
        calls.append((name, config, split, streaming))
        return FakeDataset(texts, streaming)

    module = types.SimpleNamespace(load_dataset=load)
    monkeypatch.setitem(sys.modules, "datasets", module)
    dataset = HubDataset("owner/name", "cfg", "train", streaming)
    (summary,) = run(tmp_path, folder, hf_dataset=dataset)
    assert calls == [("owner/name", "cfg", "train", streaming)]
    assert summary["inputs"] == ["owner/name:cfg:train"]
    assert documents(tmp_path / "out/o_text_document") == expected(inner, texts)
    parts = []
    for index in range(3):
        run(tmp_path, folder, hf_dataset=dataset, num_shards=3, shard_index=index)
        parts.append(documents(tmp_path / f"out/o_{index:05d}-of-00003_text_document"))
    if streaming:
        assert parts == [expected(inner, texts[i::3]) for i in range(3)]
    else:
        assert list(itertools.chain(*parts)) == expected(inner, texts)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="pip install datasets"):
        run(tmp_path, folder, hf_dataset=dataset)


def reference(data, inner):
    """Documents of JSON lines, the slow way, with the standard library alone."""
    found = []
    for line in data.split(b"\n"):
        try:
            text = json.loads(line.decode("utf-8"))["text"]
            text.encode("utf-8")
        except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
            continue
        ids = inner.encode(text, add_special_tokens=False).ids
        if ids:
            found.append([[*ids, 0]])
    return found


@pytest.mark.parametrize("seed", range(4))
def test_fuzz(tmp_path, bpe, seed):
    """Never a traceback, never another id than HF tokenizers' from what is valid JSON."""
    folder, inner = bpe
    rng = random.Random(seed)

    def text():
        kind = rng.randrange(5)
        if kind == 0:
            return "".join(chr(rng.choice((0, 9, 0x7F, 0x85, 0x2028))) for _ in range(9))
        if kind == 1:
            return "".join(chr(rng.randrange(p << 16, (p << 16) + 0xD7FF)) for p in range(17))
        if kind == 2:
            return rng.choice(("", " ", "<|endoftext|>", "x" * rng.randrange(300000)))
        return TEXT[: rng.randrange(200)]

    lines = []
    for _ in range(150):
        line = json.dumps({"text": text(), "n": 1}, ensure_ascii=rng.random() < 0.5).encode()
        kind = rng.randrange(8)
        if kind == 0:
            line = rng.randbytes(rng.randrange(80))
        elif kind == 1:
            line = line[: rng.randrange(len(line))]
        elif kind == 2:
            at = rng.randrange(len(line))
            line = line[:at] + rng.randbytes(2) + line[at:]
        elif kind == 3:
            line = rng.choice((b"", b"null", b"[]", b'{"text":null}', b'{"text":"\\ud800"}', b"\r"))
        lines.append(line)
    data = b"\n".join([json.dumps({"text": "one is there"}).encode(), *lines])
    (tmp_path / "x.jsonl").write_bytes(data)
    (summary,) = run(tmp_path, folder, tmp_path / "x.jsonl", on_error="skip")
    assert summary["tokenizer_engine"] == "gigatoken"
    assert documents(tmp_path / "out/o_text_document") == reference(data, inner)
    listed = (tmp_path / "out/o_rejected.jsonl").read_text().splitlines()
    assert len(listed) == summary["rejected"] > 20


def test_empty_inputs(tmp_path, bpe):
    for name, data in (("a.jsonl", b""), ("b.jsonl", b"\n\n"), ("c.jsonl.gz", gzip.compress(b""))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match="no tokens written"):
            run(tmp_path, bpe[0], tmp_path / name)
    assert not list((tmp_path / "out").iterdir())
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError, match="nothing: no such file"):
        run(tmp_path, bpe[0], Path(tmp_path / "nothing"))
    with pytest.raises(UserError, match="give either --input or --hf-dataset"):
        run(tmp_path, bpe[0])
