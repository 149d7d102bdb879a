"""Inputs are cut into items that together are the whole, from any offset, for any shard."""

import bz2
import gzip
import itertools
import json
import lzma
import threading
import time

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import zstandard

from fixedcode_megatron.data import sources, tables
from fixedcode_megatron.data.ahead import read_ahead
from fixedcode_megatron.data.inputs import expand_inputs
from fixedcode_megatron.data.work import FileInputs, Position, read_texts
from fixedcode_megatron.errors import UserError

TEXTS = ["one", "zwei", "trois " * 50, "四", "", "six"]
DATA = "".join(json.dumps({"text": t}) + "\n" for t in TEXTS).encode()


def zstd(data):
    pack = zstandard.ZstdCompressor().compress
    return pack(data[:40]) + pack(data[40:])  # two frames


PACKERS = {".gz": gzip.compress, ".zst": zstd, ".xz": lzma.compress, ".bz2": bz2.compress}


def texts_of(items):
    return [t for item in items for t in item.payload.read(["text"]).columns[0]]


@pytest.mark.parametrize("size", [1, 30, 100000])
@pytest.mark.parametrize("end", [b"", b'{"text": "no newline"}'])
def test_lines_by_place(tmp_path, size, end):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + DATA + end)
    items = list(sources.line_items(0, path, 0, 0, 1 << 40, size))
    expected = [*TEXTS, "no newline"] if end else TEXTS
    assert texts_of(items) == expected
    assert sum(item.read_bytes for item in items) == path.stat().st_size
    assert len(items) == (1 if size == 100000 else len(items)) and (size > 1 or len(items) > 5)
    for i, item in enumerate(items):
        rest = sources.line_items(0, path, item.end, 0, 1 << 40, size)
        assert texts_of(items[: i + 1]) + texts_of(rest) == expected


@pytest.mark.parametrize("suffix", ["", *PACKERS])
@pytest.mark.parametrize("size", [1, 100000])
def test_lines_of_a_stream(tmp_path, monkeypatch, suffix, size):
    monkeypatch.setattr("fixedcode_megatron.data.streams.CHUNK", 16)
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(PACKERS.get(suffix, bytes)(DATA))
    items = list(sources.stream_items(0, path, 0, size))
    assert texts_of(items) == TEXTS
    assert sum(item.read_bytes for item in items) == path.stat().st_size
    for i, item in enumerate(items):
        assert (
            texts_of(items[: i + 1]) + texts_of(sources.stream_items(0, path, item.end, size))
            == TEXTS
        )


@pytest.mark.parametrize("suffix", list(PACKERS))
def test_a_compressed_file_cut_short_is_an_error(tmp_path, suffix):
    path = tmp_path / f"x.jsonl{suffix}"
    whole = PACKERS[suffix](DATA * 100)
    for size in (len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match="cut short"):
            list(sources.stream_items(0, path, 0))
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match=r"x\.jsonl.*(damaged|Invalid)"):
        list(sources.stream_items(0, path, 0))


def write_tables(folder, texts, group=2):
    table = pa.table({"id": list(range(len(texts))), "text": texts})
    pa.parquet.write_table(table, folder / "x.parquet", row_group_size=group)
    pa.feather.write_feather(table, folder / "x.feather", chunksize=group)
    with (
        pa.OSFile(str(folder / "x.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=group)


@pytest.mark.parametrize("limit", [1, 1 << 30])
def test_parquet(tmp_path, monkeypatch, limit):
    """A small row group is read by the worker, a large one by the parent, piece by piece."""
    monkeypatch.setattr(tables, "_GROUP_BYTES", limit)
    write_tables(tmp_path, TEXTS)
    path = tmp_path / "x.parquet"
    items = list(tables.parquet_items(0, path, 0, 0, 1 << 40, ["text"]))
    assert texts_of(items) == TEXTS and [item.end for item in items] == [2, 4, 6]
    for start in range(7):
        rest = tables.parquet_items(0, path, start, 0, 1 << 40, ["text"])
        assert texts_of(rest) == TEXTS[start:]
    (missing,) = (
        next(tables.parquet_items(0, path, 4, 0, 1 << 40, ["none"]))
        .payload.read(["none"])
        .rejected[:1]
    )
    assert missing.kind == "missing"


@pytest.mark.parametrize("name", ["x.feather", "x.arrow"])
def test_arrow(tmp_path, name):
    write_tables(tmp_path, TEXTS)
    for start in range(7):
        items = tables.arrow_items(0, tmp_path / name, start, ["text"])
        assert texts_of(items) == TEXTS[start:]
    (tmp_path / name).write_bytes(b"no table")
    with pytest.raises(UserError, match="cannot be read as an Arrow"):
        list(tables.arrow_items(0, tmp_path / name, 0, ["text"]))


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 40])
def test_shards_one_after_the_other_are_the_whole(tmp_path, shards):
    texts = [f"{i} " * (i % 17) for i in range(60)]
    lines = [json.dumps({"text": t}) + "\n" for t in texts]
    (tmp_path / "a1.jsonl").write_text("".join(lines[:25]))
    (tmp_path / "a2.jsonl.gz").write_bytes(gzip.compress("".join(lines[25:30]).encode()))
    table = pa.table({"text": texts[30:50]})
    pa.parquet.write_table(table, tmp_path / "a10.parquet", row_group_size=3)
    for i in range(50, 60):
        (tmp_path / f"b{i}.txt").write_text(texts[i])
    found, reported = [], 0
    for shard in range(shards):
        inputs = FileInputs([str(tmp_path)], ["text"], shard, shards)
        found.extend(read_texts(inputs, ["text"], stop=True))
        reported += inputs.total_bytes
    assert found == texts
    assert reported == sum(p.stat().st_size for p in tmp_path.iterdir())


def test_line_numbers_of_a_shard_count_from_the_beginning_of_the_file(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "ok"}\n' * 10 + "bad\n")
    inputs = FileInputs([str(tmp_path / "x.jsonl")], ["text"], 1, 2)
    (item,) = inputs.items(Position())
    records = item.payload.read(["text"])
    assert inputs.lines_before(0) + records.rejected[0].line == 11
    assert inputs.lines_before(0) == 6  # 77 of 154 bytes: the line that begins at 90 is the first
    write_tables(tmp_path, TEXTS)
    parquet = FileInputs([str(tmp_path / "x.parquet")], ["text"], 1, 2)
    assert parquet.lines_before(0) == 4 and texts_of(parquet.items(Position())) == TEXTS[4:]


def test_folders(tmp_path):
    names = ("p10.jsonl", "p2.json.gz", "sub/p1.txt", ".cache/x.jsonl", "a.md", "o_rejected.jsonl")
    for name in (*names, "o_text_document.json", "o_text_document.idx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    found = expand_inputs([str(tmp_path)])
    assert [str(p.relative_to(tmp_path)) for p in found] == [
        "p2.json.gz",
        "p10.jsonl",
        "sub/p1.txt",
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        UserError, match=r"empty: no such file: a folder without documents; .*\.txt"
    ):
        expand_inputs([str(tmp_path / "empty")])
    with pytest.raises(UserError, match="nowhere: no such file"):
        expand_inputs([str(tmp_path / "nowhere")])
    with pytest.raises(UserError, match=r"a\.md: cannot read this kind; known are \.jsonl"):
        expand_inputs([str(tmp_path / "a.md")])


def test_sample_comes_from_several_places(tmp_path):
    lines = [json.dumps({"text": f"{i:06d}" + "x" * 1000}) + "\n" for i in range(1000)]
    (tmp_path / "x.jsonl").write_text("".join(lines))
    numbers = [int(t[:6]) for t in FileInputs([str(tmp_path)], ["text"]).sample()]
    assert numbers[0] == 0 and 500 < max(numbers) < 1000
    assert len({n // 100 for n in numbers}) >= 3


def test_compressed_files_are_read_at_once_and_come_in_order(tmp_path):
    """More files than threads, of many items each; the last one is cut short."""
    texts = [f"{i} {j}" for i in range(12) for j in range(3000)]
    for i in range(12):
        lines = "".join(json.dumps({"text": t}) + "\n" for t in texts[3000 * i : 3000 * (i + 1)])
        (tmp_path / f"p_{i}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    inputs = FileInputs([str(tmp_path)], ["text"])
    assert list(read_texts(inputs, ["text"], stop=True)) == texts
    last = tmp_path / "p_11.jsonl.gz"
    last.write_bytes(last.read_bytes()[:3000])
    found = []
    with pytest.raises(UserError, match=r"p_11\.jsonl\.gz: the compressed file is damaged or cut"):
        for text in read_texts(inputs, ["text"], stop=True):
            found.append(text)
    assert found == texts[: len(found)] and len(found) >= 33_000


def test_sources_are_read_together_and_ended():
    together = threading.Barrier(3, timeout=60)

    def source(name):
        together.wait()  # would never pass if the three were read one after the other
        yield from (f"{name}{i}" for i in range(10))

    items = read_ahead(map(source, "abc"), 3)
    assert list(items) == [f"{name}{i}" for name in "abc" for i in range(10)]
    endless = read_ahead([itertools.count()], 2)
    assert [next(endless) for _ in range(5)] == [0, 1, 2, 3, 4]
    before = threading.active_count()
    endless.close()
    deadline = time.monotonic() + 30
    while threading.active_count() >= before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
