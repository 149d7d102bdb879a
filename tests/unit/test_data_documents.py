"""JSON lines and rows: what is a document, what is not."""

import pytest

from fixedcode_megatron.data.documents import Rejected, parse_lines, parse_rows
from fixedcode_megatron.data.sources import Lines


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
    assert parse_lines(line + b"\n", ["text"]).columns == [[text]]


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
    records = parse_lines(b'{"text": "x"}\n' + line + b"\n", ["text"])
    (rejected,) = records.rejected
    assert isinstance(rejected, Rejected) and rejected.kind == kind and rejected.line == 2
    assert records.columns == [["x"]] and records.lines == 2


def test_a_record_counts_under_all_keys_or_none():
    data = b'{"a": "1", "b": "2"}\n{"a": "3"}\n{"b": "4", "a": "5"}'
    records = parse_lines(data, ["b", "a"])
    assert records.columns == [["2", "4"], ["1", "5"]]
    assert [(r.line, r.kind) for r in records.rejected] == [(2, "missing")]


def test_byte_order_mark_only_at_the_beginning_of_a_file():
    data = b'\xef\xbb\xbf{"text": "a"}\n'
    assert Lines(data, first=True).read(["text"]).columns == [["a"]]
    assert Lines(data, first=False).read(["text"]).rejected[0].kind == "malformed"


def test_rows():
    rows = [{"text": "a"}, {"text": None}, {"text": 5}, {}, {"text": "\ud800"}, {"text": "b"}]
    records = parse_rows(rows, ["text"])
    assert records.columns == [["a", "b"]] and records.lines == 6
    kinds = [(r.line, r.kind) for r in records.rejected]
    assert kinds == [(2, "null"), (3, "non-string"), (4, "missing"), (5, "malformed")]
