"""JSON lines: what is a document, what is not, where blocks are cut."""

import gzip

import pytest

from fixedcode_megatron.data.documents import (
    Block,
    Rejected,
    expand_inputs,
    parse_block,
    read_blocks,
)
from fixedcode_megatron.errors import UserError


def parse(data, keys=("text",)):
    return list(parse_block(Block("x.jsonl", 1, data, len(data)), keys))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"text": "a"}', "a"),
        (b'{"text": "a"}\r', "a"),
        (b' {"score": NaN, "text": "a"} ', "a"),  # Python's json writes NaN
        (b'{"text": "\\ud83d\\ude00"}', "\U0001f600"),
        ('{"text": "\u2028\x85 stay"}'.encode(), "\u2028\x85 stay"),  # line ends only to Python
        (b'{"text": "a\\u0000b"}', "a\x00b"),
    ],
)
def test_documents(line, text):
    assert parse(line + b"\n") == [[text]]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b'{"text": "\\ud800"}', "malformed"),  # half a surrogate pair has no UTF-8
        (b'{"text": "\xff"}', "malformed"),
        (b'["text"]', "malformed"),
        (b'"text"', "malformed"),
        (b"[" * 100000, "malformed"),
        (b'{"text": ["a"]}', "non-string"),
        (b'{"text": false}', "non-string"),
        (b"\x00", "malformed"),
        (b"  \t ", "blank"),
    ],
)
def test_no_documents(line, kind):
    (rejected,) = parse(line + b"\n")
    assert isinstance(rejected, Rejected) and rejected.kind == kind and rejected.line == 1


@pytest.mark.parametrize("size", [1, 5, 16, 1000])
@pytest.mark.parametrize("packed", [False, True])
def test_blocks_hold_whole_lines_with_their_numbers(tmp_path, size, packed):
    data = b"\xef\xbb\xbf" + b'{"text":"one"}\n\n{"text":"three"}\nbad\n{"text":"five"}'
    path = tmp_path / ("x.jsonl.gz" if packed else "x.jsonl")
    path.write_bytes(gzip.compress(data) if packed else data)
    found = [
        record for block in read_blocks([path], size) for record in parse_block(block, ["text"])
    ]
    texts = [record[0] for record in found if not isinstance(record, Rejected)]
    assert texts == ["one", "three", "five"]
    assert [(r.line, r.kind) for r in found if isinstance(r, Rejected)] == [
        (2, "blank"), (4, "malformed"),
    ]  # fmt: skip
    if not packed:
        assert sum(block.read_bytes for block in read_blocks([path], size)) == len(data)


def test_folders_leave_out_summaries_and_other_files(tmp_path):
    for name in ("p10.jsonl", "p2.json.gz", "o_text_document.json", "o_text_document.idx", "a.md"):
        (tmp_path / name).write_text("")
    assert [p.name for p in expand_inputs([str(tmp_path)])] == ["p2.json.gz", "p10.jsonl"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: no such file"):
        expand_inputs([str(tmp_path / "empty")])
