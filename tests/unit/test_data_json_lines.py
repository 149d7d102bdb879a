"""JSON lines read by compiled code: what `documents.parse_lines` reads, or nothing."""

import functools
import json
import random

import numpy as np
import pytest

from fixedcode_megatron.data import json_lines
from fixedcode_megatron.data.characters import NUMERIC, UNKNOWN, find_unknown
from fixedcode_megatron.data.digits import cut_digits
from fixedcode_megatron.data.documents import parse_lines
from fixedcode_megatron.data.json_lines import JsonLinesReader
from fixedcode_megatron.data.marked_text import END_BYTES, MarkedText

BOTH = NUMERIC | UNKNOWN
compiled = pytest.mark.skipif(json_lines.library() is None, reason="no C++ compiler")


def texts_of(data, key="text", kinds=BOTH):
    """The documents, or None if the reader gives none."""
    found = JsonLinesReader(key, kinds).read(data)
    return None if found is None else [found.text(i) for i in range(len(found))]


def check(reader, data, key="text", kinds=BOTH):
    """Compare with Python's way if the reader gives documents; return whether it does."""
    found = reader.read(data)
    if found is None:
        return False
    records = parse_lines(data, (key,))
    assert records.rejected == [], data
    expected = MarkedText.of(records.columns[0])
    assert expected.left_out == found.left_out == {}, data
    assert found.data == expected.data, data
    assert found.bounds.dtype == np.int64 and found.bounds.tolist() == expected.bounds.tolist()
    assert found.places.dtype == np.int64
    same(find_unknown(found.data, found.places), find_unknown(found.data))
    if kinds == BOTH:
        some, every = (cut_digits(found.data, b"|", p) for p in (found.places, None))
        assert some[:2] == every[:2]
        same(some[2], every[2])
    return True


def same(found, expected):
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]


ORDINARY = [
    (b'{"text": "a"}\n', ["a"]),
    (b'{"text":"a"}\n{"text":"b"}', ["a", "b"]),
    (b'{"text": ""}\n{"text": ""}\n{"text": ""}\n', ["", "", ""]),
    (b'{"text": "a"}\r\n{"text": "b"}\r\n', ["a", "b"]),
    (b' \t{ \t"text"\r:\t"a" , "n" : 1 } \r \n', ["a"]),
    (rb'{"text": "\"\\\/\b\f\n\r\t"}', ['"\\/\b\f\n\r\t']),
    (rb'{"text": "\u0041\u00e9\u20AC\uffff\u0000\u007f"}', ["Aé€\uffff\x00\x7f"]),
    (rb'{"text": "\ud83d\ude00\uD83D\uDE00 \ud800\udc00 \udbbf\udfff"}', ["😀😀 𐀀 \U000fffff"]),
    (rb'{"text": "\u0080\u07ff\u0800\ud7ff\ue000\ud800\udc00"}', ["\x80߿ࠀ\ud7ff\ue000\U00010000"]),
    ('{"text": "é ½ € 漢字 😀 \u2028\u2029\x85\ufeff\x7f"}'.encode(),
     ["é ½ € 漢字 😀 \u2028\u2029\x85\ufeff\x7f"]),
    ("\x80߿ࠀ\ud7ff\ue000\uffff\U00010000\U000fffff".join(('{"text":"', '"}')).encode(),
     ["\x80߿ࠀ\ud7ff\ue000\uffff\U00010000\U000fffff"]),
    (b'{"id": 7, "text": "a", "meta": {"text": "no", "list": [1, [], {}, [{"a": null}]]}}', ["a"]),
    (b'{"a": true, "b": false, "c": null, "d": [true, false, null], "text": "a"}', ["a"]),
    (b'{"text": "first", "id": 1, "text": "last"}', ["last"]),
    (b'{"text": "\xc2\xbd", "text": "", "text": "1"}\n{"text": "\xc2\xbd2"}', ["1", "½2"]),
    (b'{"n": [0, -0, 10, -1, 0.5, -0.0, 1e5, 1E5, 1e+5, 1.5e-07, 1e-300, 1e99, 12345678901234567], '
     b'"text": "a"}', ["a"]),
    (b'{"n": 0.' + b"3" * 150 + b', "m": ' + b"7" * 200 + b', "text": "a"}', ["a"]),
    (b'{"n": ' + b"[" * 60 + b"]" * 60 + b', "text": "a"}', ["a"]),
    (b'{"n": ' + b'{"k":' * 60 + b"1" + b"}" * 60 + b', "text": "a"}', ["a"]),
    (b'{"meta": {"\\u0074ext": 1, "a\\n": 2}, "text": "a"}', ["a"]),
    (b'{"": 1, "tex": "b", "texts": "c", "Text": "d", "text": "a"}', ["a"]),
    ('{"é": "\\ud83d\\ude00", "url": "http:\\/\\/x", "text": "a"}'.encode(), ["a"]),
    (b'{"text": "{\\"text\\": \\"inner\\"}"}', ['{"text": "inner"}']),
]  # fmt: skip


@compiled
@pytest.mark.parametrize(("data", "texts"), ORDINARY)
def test_ordinary_lines_are_read(data, texts):
    assert texts_of(data) == texts
    assert check(JsonLinesReader("text", BOTH), data)
    assert check(JsonLinesReader("text", UNKNOWN), data, kinds=UNKNOWN)


SCRIPTS = {
    "Arabic": "يولد جميع الناس أحرارًا متساوين",
    "Bengali": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা",
    "Chinese": "在平静的湖面上，一只小船缓缓地划过。",
    "Emoji": "lol 😂😂 that's great 👍 see you 🎉",
    "Georgian": "ყველა ადამიანი იბადება თავისუფალი",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι",
    "Hebrew": "כל בני האדם נולדו בני חורין",
    "Hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में",
    "Japanese": "吾輩は猫である。名前はまだ無い。",
    "Korean": "모든 인간은 태어날 때부터 자유로우며",
    "Russian": "Все люди рождаются свободными",
    "Tamil": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே",
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกัน",
}


@compiled
@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize("kinds", [UNKNOWN, BOTH])
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_is_read(script, kinds, escaped):
    """Of a whole block of one script."""
    text = SCRIPTS[script] * 20
    data = json.dumps({"text": text}, ensure_ascii=escaped).encode() + b"\n"
    assert check(JsonLinesReader("text", kinds), data * 20, kinds=kinds)


@compiled
@pytest.mark.parametrize("character", ["½", "\u0378", "㊿", "\u3040", "𝟙", "\U000323b0"])
def test_a_block_full_of_characters_that_are_looked_for(character):
    """Read or left to Python, but none is missed."""
    reader = JsonLinesReader("text", BOTH)
    for count in (*range(1, 40), 1000, 20000):
        for text in (
            character * count,
            (character + "a") * count,
            (character + "1 a " * 9) * count,
        ):
            for escaped in (False, True):
                check(reader, json.dumps({"text": text}, ensure_ascii=escaped).encode())


NOT_READ = [
    b"", b"\n", b" \n", b"\r\n", b"\x00", b"{}", b"[]", b'"text"', b"null", b"1", b"{", b'{"', b"}",
    *[b'{"text": "a"}'[:i] for i in range(1, 13)],
    # JSON
    b'{"text": "a",}', b'{,"text": "a"}', b'{"text" "a"}', b'{"text":: "a"}', b'{"text": "a"]',
    b'{"text": "a"}}', b'{"text": "a"} x', b'{"text": "a"},', b'{"text": "a"}{"text": "b"}',
    b'{"text": "a"}\x00', b'{"text": "a"}\x0c', b'\x0b{"text": "a"}', b'["text", "a"]',
    b"{'text': 'a'}", b'{text: "a"}', b'{"text": a}', b'{"text": "a" "n": 1}', b'{"text": "a"}//',
    b'\xef\xbb\xbf{"text": "a"}', b'\xc2\xa0{"text": "a"}', b'{"text": "a"\xc2\xa0}',
    b'{"text":\n"a"}', b'{"text": "a\nb"}', b'{"text": "a", "n": }', b'{"text": "a", 1: 2}',
    # a blank line among others
    b'{"text": "a"}\n\n{"text": "b"}\n', b'{"text": "a"}\n\n', b'\n{"text": "a"}\n',
    b'{"text": "a"}\n \t\r\n', b'{"text": "a"}\n{"text": 1}\n{"text": "b"}\n',
    # what the key holds
    b'{"no": "a"}', b'{"text": null}', b'{"text": 1}', b'{"text": true}', b'{"text": ["a"]}',
    b'{"text": {"text": "a"}}', b'{"meta": {"text": "a"}}', b'{"text": "a", "text": null}',
    b'{"text": "a", "text": 1}', b'{"texts": "a"}', b'{"tex": "a"}', b'{"text ": "a"}',
    # a key that may be another spelling of it
    rb'{"\u0074ext": "a"}', rb'{"text": "a", "\u0074ext": "b"}', rb'{"text": "a", "te\u0078t": 1}',
]  # fmt: skip

BAD_STRINGS = [
    *[b"\\" + bytes([c]) for c in range(256) if c not in b'"\\/bfnrtu'],
    rb"\u", rb"\u1", rb"\u12", rb"\u123", rb"\u12g4", rb"\u 123", rb"\u-123", rb"\u+123",
    rb"\U0041", rb"\x41", rb"\u123\u", b"\\u00\xc3\xa9",
    *[bytes([c]) for c in range(0x20)],
    # half a surrogate pair
    rb"\ud800", rb"\udbff", rb"\udc00", rb"\udfff", rb"\ud800a", rb"\ud800\n", rb"\ud800\u0041",
    rb"\ud800\ud800", rb"\ud800\udbff", rb"\ud800\ue000", rb"\udc00\udc00", rb"\udfff\udfff",
    rb"\udc00\ud800", rb"\ud800\\udc00", rb"\ud800\u", rb"\ud800\udc0",
    # UTF-8
    *[bytes([c]) for c in range(0x80, 0x100)], *[bytes([c, 0x80]) for c in range(0xE0, 0x100)],
    b"\xc0\x80", b"\xc0\xaf", b"\xc1\xbf", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xf0\x80\x80\x80",
    b"\xf0\x8f\xbf\xbf", b"\xf8\x88\x80\x80\x80", b"\xed\xa0\x80", b"\xed\xbf\xbf",
    b"\xed\xa0\x80\xed\xb0\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xe2\x82",
    b"\xf0\x9f\x98", b"\xf0\x9f", b"\xe2\x82a", b"\xf0\x9f\x98a", b"\xc3a", b"\xc3\xc3\xa9",
    b"\xe2\x82\xc2\xa9", b"\xf0\x9f\x98\xc2\xa9", b"\xc3\xa9\xa9", b"\xfe", b"\xff",
]  # fmt: skip
MARKERS = ["\U0010fffe", "\U0010ffff", END_BYTES.decode(), "\U00100000"]
BAD_VALUES = [
    *"01 -01 00 +1 .5 1. - --1 1e 1e+ 1.e1 1.5.2 1e1.5 0x1 1_0 NaN nan Infinity -Infinity".split(),
    *"1e400 -1e999 1e100 1e-1000 True nul truee falsey undefined 1, [1,] [,1] [ [1 [1} ] }".split(),
    *['{"a"}', '{"a":}', '{"a":1,}', "{1:2}", '{"a" 1}', "1 2", "[1 2]", "1" * 400, "1" * 5000],
    *["[" * 2000 + "]" * 2000, "[" * 100000, '{"a":' * 2000 + "1" + "}" * 2000],
]


@compiled
@pytest.mark.parametrize("line", NOT_READ)
def test_lines_that_are_left_to_python(line):
    assert texts_of(line) is None
    assert texts_of(b'{"text": "x"}\n' + line + b"\n") is None or line == b""


@compiled
@pytest.mark.parametrize("pad", [b"", b"x", b"xxxxxxx", b"xxxxxxxx", b"\xc3\xa9"])
def test_strings_that_are_left_to_python(pad):
    """Under the key, under another one, in a list, and as a name."""
    lines = (b'{"text": "%s"}', b'{"n": "%s", "text": "a"}', b'{"text": "a", "n": ["%s"]}',
             b'{"%s": 1, "text": "a"}', b'{"text": "a", "n": {"%s": 1}}')  # fmt: skip
    for line in lines:
        assert texts_of(line % pad) is not None
        for bad in BAD_STRINGS:
            for string in (bad, pad + bad, bad + pad, pad + bad + pad):
                assert texts_of(line % string) is None, line % string


@compiled
@pytest.mark.parametrize("text", MARKERS)
def test_the_last_plane_is_left_to_python(text):
    """Its characters begin as the markers do."""
    for escaped in (False, True):
        data = json.dumps({"text": f"a{text}b"}, ensure_ascii=escaped).encode()
        assert texts_of(data) is None and parse_lines(data, ("text",)).rejected == []


@compiled
@pytest.mark.parametrize("value", BAD_VALUES, ids=lambda value: value[:12])
def test_values_that_are_left_to_python(value):
    """Even those that Python takes, as NaN."""
    for line in ('{"text": "a", "n": %s}', '{"n": %s, "text": "a"}', '{"text": %s}'):
        assert texts_of((line % value).encode()) is None


@compiled
def test_numbers_and_depth_near_the_limits():
    """Python may take them or not; the reader may leave them to it."""
    reader, ends = JsonLinesReader("text", BOTH), ("", "e9", "e99", "E+308")
    values = ["9" * n + end for n in range(190, 320) for end in ends]
    values += [f"1e{n}" for n in (98, 99, 100, 307, 308, 309)]
    values += ["0." + "0" * n + "1e-99" for n in range(240, 260)]
    for depth in (*range(60, 70), *range(1020, 1030)):
        values += ["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth]
    found = [check(reader, f'{{"n": {value}, "text": "a"}}'.encode()) for value in values]
    assert any(found) and not all(found)


ATOMS = [
    *"aZ 09{}[]:,/'-.~\x7f", "  ", "é", "½", "²", "٣", "\u0378", "\u05f5", "\u088f", "€", "漢",
    "あ", "〇", "㊿", "\u3040", "\ufdd0", "\ufffe", "\uffff", "😀", "𝟙", "𐄇", "\U000323b0",
    "\U0001fffe", "\U000e0001", "\U000ffffd", "plain words", "12345678", "\u2028", "\ud7ff",
    "\ue000", *'"\\\n\r\t\b\f\x00\x1f',
]  # fmt: skip
SCALARS = [
    *["0", "-0", "1", "-17", "1.5", "2.5e-8", "1E5", "1e+05", "true", "false", "null"],
    *["[]", "{}", '""', "123456789012345678901234567890", "0.1234567890123456789"],
    *["[ ]", "{ }", "[ 1 , 2 ]"],
]  # fmt: skip
NAMES = ["id", "text", "text", "tex", "texts", "meta", "url", "é", "", "t e", "😀", "\x7f"]


def random_string(rng, longest):
    text = "".join(rng.choices(ATOMS, k=rng.randint(0, longest)))
    spelled = json.dumps(text, ensure_ascii=rng.random() < 0.3)
    return spelled.replace("/", rng.choice(["/", "\\/"]))


def random_value(rng, depth=0):
    if depth < 4 and rng.random() < 0.3:
        many = range(rng.randint(0, 3))
        if rng.random() < 0.5:
            return "[" + ",".join(random_value(rng, depth + 1) for _ in many) + "]"
        fields = (f"{random_string(rng, 3)}: {random_value(rng, depth + 1)}" for _ in many)
        return "{" + ", ".join(fields) + "}"
    return rng.choice(SCALARS) if rng.random() < 0.6 else random_string(rng, 5)


def random_line(rng, key):
    """Valid JSON with a string under `key`."""
    names = [name for name in rng.choices(NAMES, k=rng.randint(0, 3)) if name != key]
    fields = [(name, random_value(rng)) for name in names]
    for _ in range(rng.choice((1, 1, 1, 2))):
        string = random_string(rng, rng.choice((0, 3, 12, 40)))
        fields.insert(rng.randint(0, len(fields)), (key, string))
    space = functools.partial(rng.choice, ("", "", " ", "\t", "\r", "  "))
    inner = ",".join(
        f'{space()}"{name}"{space()}:{space()}{value}{space()}' for name, value in fields
    )
    return f"{space()}{{{inner}}}{space()}".encode()


def mutated(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        place = rng.randrange(len(data) + 1)
        kind = rng.randrange(9)
        if kind == 0:
            data[place : place + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            data[place:place] = bytes(
                [rng.choice(b'"\\{}[]:,\n\r u0d8\x00\x7f\x80\xc3\xe2\xed\xf0\xf4')]
            )
        elif kind <= 3:
            del data[place : place + rng.randint(1, 4)]
        elif kind <= 7:
            data[place : place + 1] = bytes(
                [(data[place : place + 1] or b"a")[0] ^ 1 << rng.randrange(8)]
            )
        else:
            del data[place:]
    return bytes(data)


@compiled
@pytest.mark.parametrize("mutate", [False, True])
@pytest.mark.parametrize(("key", "kinds"), [("text", BOTH), ("é", UNKNOWN), ("t", BOTH)])
def test_random_blocks_as_python_reads_them(key, kinds, mutate):
    rng = random.Random(f"{key}{mutate}")
    reader, blocks, found = JsonLinesReader(key, kinds), 3500, 0
    for _ in range(blocks):
        lines = [random_line(rng, key) for _ in range(rng.choice((1, 1, 2, 5)))]
        data = b"\n".join(lines) + rng.choice((b"", b"\n"))
        if mutate:
            data = mutated(rng, data)
        found += check(reader, data, key, kinds)
    assert blocks * 0.1 < found < blocks * 0.6 if mutate else found == blocks, found


@compiled
@pytest.mark.parametrize("key", ["ключ", "漢字", "😀", "\x7f", "k", "a key", "é" * 50])
def test_any_key(key):
    reader = JsonLinesReader(key, BOTH)
    data = json.dumps({"text": 1, key: "½ a"}, ensure_ascii=False).encode() + b"\n"
    assert check(reader, data * 3, key) and check(reader, data * 300, key)
    assert not check(reader, data + b'{"text": "a"}\n', key)


@compiled
@pytest.mark.parametrize("key", ["", '"', "\\", "a\nb", "\x00", "\ud800", "\U0010fffe"])
def test_a_key_that_is_never_spelled_plainly(key):
    """Documents are left to Python, even the smallest, which has no room for a marker."""
    reader = JsonLinesReader(key, BOTH)
    for count in (1, 500):
        lines = [json.dumps({key: text}, separators=(",", ":")) + "\n" for text in ("", "a" * 20)]
        assert reader.read("".join(lines).encode() * count) is None
        data = json.dumps({key: ""}, ensure_ascii=False, separators=(",", ":"))
        assert reader.read((data + "\n").encode(errors="replace") * count) is None


@compiled
def test_the_smallest_lines():
    """Each as long as its marker: what comes out is as long as what went in."""
    reader = JsonLinesReader("k", BOTH)
    for count in (1, 2, 7, 8, 9, 1000):
        data = b"\n".join([b'{"k":""}'] * count)
        assert check(reader, data, "k") and check(reader, data + b"\n", "k")


@compiled
@pytest.mark.parametrize(
    "special", ["", "\\n", '\\"', "\\u00bd", "\\ud83d\\ude00", "\x7f", "é", "½", "漢", "😀", "\\/é"]
)
def test_every_length_and_place(special):
    """Words of eight bytes: a special character at each place of texts of 0 to 40 bytes."""
    reader = JsonLinesReader("text", BOTH)
    for length in range(41):
        for place in range(length + 1):
            text = "abcdefgh" * 6
            text = text[:place] + special + text[place:length]
            line = f'{{"text":"{text}"}}'.encode()
            assert check(reader, line), line
            assert check(reader, line + b"\n" + line + b"\n")
            assert check(reader, f'{{"n":"{text}","text":""}}'.encode())
            assert reader.read(line[:-2]) is reader.read(line[:-1]) is None


@compiled
@pytest.mark.parametrize(
    "special", [b"\x1f", b"\n", b"\x80", b"\xc3", b"\xed\xa0\x80", b"\\x", b"\xf4\x8f\xbf\xbe"]
)
def test_a_mistake_at_every_place(special):
    reader = JsonLinesReader("text", BOTH)
    for length in range(41):
        for place in range(length + 1):
            text = b"abcdefgh" * 6
            text = text[:place] + special + text[place:length]
            for line in (b'{"text":"%s"}', b'{"n":"%s","text":""}', b'{"%s":0,"text":""}'):
                assert reader.read(line % text) is None


@compiled
def test_a_large_block_and_a_small_one_after_it():
    reader = JsonLinesReader("text", BOTH)
    small = '{"text": "a ½ 漢"}\n'.encode()
    assert check(reader, small)
    assert check(reader, ('{"text": "' + "é words 12 \\n" * 1_400_000 + '"}\n').encode() + small)
    assert len(reader._text) < 1 << 20
    assert check(reader, small)
    assert check(reader, b'{"text": "twenty byte of text"}\n' * 600_000)
    assert reader.read(b'{"text": "a"}\n' * 1_300_000 + b"{") is None
    assert check(reader, small * 3) and check(reader, small)


@compiled
def test_what_was_read_stays_when_the_next_block_is_read():
    reader = JsonLinesReader("text", BOTH)
    first = reader.read('{"text": "a½"}\n{"text": "b½"}\n'.encode())
    before = (first.data, first.bounds.tolist(), first.places.tolist())
    assert check(reader, '{"text": "½½½½½½"}\n{"text": "other"}\n'.encode())
    assert before == (first.data, first.bounds.tolist(), first.places.tolist())
