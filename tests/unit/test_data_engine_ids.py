"""Markers put into text and taken out of an engine's ids, compiled and by numpy."""

import random
import re
import unicodedata

import numpy as np
import pytest

from fixedcode_megatron.data import digits, engine_ids
from fixedcode_megatron.data.characters import NUMERIC, UNKNOWN, tables
from fixedcode_megatron.data.compiled import library
from fixedcode_megatron.data.engines import EngineMismatch, EnginePlan

PLAN = EnginePlan("gigatoken", b"{}", True, 1000, "LN", True)  # an end is 1256, a cut 1257
WAYS = ["numpy", pytest.param("compiled", marks=pytest.mark.skipif(not library(), reason="no C++"))]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Both ways of doing it."""
    built = library() if request.param == "compiled" else None
    for module in (digits, engine_ids):
        monkeypatch.setattr(module, "library", lambda: built)


def test_the_classes_of_all_characters():
    classes, pairs = tables()
    for code, found in enumerate(classes.tolist()):
        name = unicodedata.category(chr(code)) if 0x80 <= code < 0x34000 else ""
        is_noncharacter = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
        is_unknown = name == "Cn" and not is_noncharacter
        expected = NUMERIC if name[:1] == "N" else UNKNOWN if is_unknown else 0
        assert found == expected, hex(code)
        if found:
            first, second = chr(code).encode()[:2]
            assert pairs[first << 8 | second] & found


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32"])
@pytest.mark.parametrize(
    ("found", "cuts", "eod", "ids", "lengths", "missing"),
    [
        ([], 0, 5, [], [], []),
        ([1, 2, 1256, 3, 1256], 0, None, [1, 2, 3], [2, 1], []),
        ([1, 2, 1256, 3, 1256], 0, 5, [1, 2, 5, 3, 5], [3, 2], []),
        ([1256, 1256, 7, 1256, 1256], 0, 5, [7, 5], [0, 0, 2, 0], []),
        ([1, 1257, 2, 1257, 1256, 1257, 1256], 3, 5, [1, 2, 5], [3, 0], []),
        ([1, 1256, 2, 1004, 3, 1256, 1255, 1256], 0, None, [1, 2, 3], [1, 2, 0], [1, 2]),
        ([999, 0, 1256], 0, 0, [999, 0, 0], [3], []),
        ([*range(40), 1256, *range(40), 1257, *range(40), 1256], 1, 999,
         [*range(40), 999, *range(40), *range(40), 999], [41, 81], []),
    ],
)  # fmt: skip
def test_documents_of_an_engines_ids(way, found, cuts, eod, ids, lengths, missing, dtype):
    ids_in = np.array(found, np.uint32)
    result, found_missing = engine_ids.collect_ids(ids_in, PLAN, len(lengths), cuts, dtype, eod)
    assert result.ids.dtype == dtype and result.ids.tolist() == ids
    assert result.lengths.dtype == np.int64 and result.lengths.tolist() == lengths
    assert found_missing == missing
    assert [len(part) for part in result.split()] == lengths


@pytest.mark.parametrize(
    ("found", "documents", "cuts"),
    [
        ([1, 2], 0, 0),
        ([1, 2], 1, 0),
        ([1, 1256, 2], 1, 0),
        ([1, 1256, 1004], 1, 0),
        ([1, 1256], 2, 0),
        ([1, 1256, 2, 1256], 1, 0),
        ([1, 1256, 1257], 1, 1),
        ([1, 1257, 1256], 1, 0),
        ([1, 1257, 1256], 1, 2),
        ([1256, *range(99)], 1, 0),
        ([], 1, 0),
    ],
)
def test_markers_that_did_not_come_out_as_they_went_in(way, found, documents, cuts):
    with pytest.raises(EngineMismatch, match="lost the end"):
        engine_ids.collect_ids(np.array(found, np.uint32), PLAN, documents, cuts, "uint16", 5)


def test_random_ids_and_their_documents(way):
    """Against documents that were made up first."""
    rng = random.Random(3)
    for _ in range(300):
        eod = rng.choice((None, 0, 999))
        documents = [
            [rng.randrange(1000) for _ in range(rng.choice((0, 1, 3, 15, 16, 17, 90)))]
            for _ in range(rng.randrange(1, 9))
        ]
        missing = [i for i in range(len(documents)) if rng.random() < 0.2]
        found, cuts = [], 0
        for i, document in enumerate(documents):
            marked = [*document]
            for _ in range(rng.choice((0, 0, 1, 30))):
                marked.insert(rng.randint(0, len(marked)), 1257)
                cuts += 1
            if i in missing:
                marked.insert(rng.randint(0, len(marked)), rng.randrange(1000, 1256))
            found += [*marked, 1256]
        expected = [[*d, eod] if d and eod is not None else d for d in documents]
        ids = np.array(found, np.uint32)
        result, found_missing = engine_ids.collect_ids(
            ids, PLAN, len(documents), cuts, "uint16", eod
        )
        assert [part.tolist() for part in result.split()] == expected
        assert found_missing == missing


ATOMS = [
    "a",
    "é",
    "漢",
    "😀",
    "½",
    "𝟙",
    "㊿",
    "1",
    "23",
    " ",
    "\n",
    "\t",
    "\x0b",
    "\x1c",
    "\u2003",
    ",",
]


def test_where_random_text_is_cut(way):
    """By the rule in words: around numbers outside ASCII, and before a digit behind a character
    outside ASCII or behind two characters of which each is white space or outside ASCII."""
    rng = random.Random(4)
    classes, _ = tables()
    for size in [*range(30), *[rng.randrange(400) for _ in range(300)]]:
        atoms = rng.sample(ATOMS, rng.randint(1, len(ATOMS)))
        text = "".join(rng.choices(atoms, k=size))
        numeric = "".join({c for c in text if c >= "\x80" and classes[ord(c)] == NUMERIC})
        cuts = {match.end() for match in re.finditer(r"[^\x00-\x7f](?=[0-9])", text)}
        cuts |= {m.end(1) for m in re.finditer(r"(?=([\t-\r \x80-\U0010ffff][\t-\r ])[0-9])", text)}
        if numeric:
            for match in re.finditer(f"[{numeric}]", text):
                cuts |= {match.start(), match.end()}
        pieces = [text[i:j] for i, j in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True)]
        marked, num_cuts, _ = digits.cut_digits(text.encode(), b"<|>")
        assert marked.decode() == "<|>".join(pieces) and num_cuts == len(cuts)


def test_text_that_is_cut_everywhere(way):
    """Five times as long with its markers."""
    for text, cut in (("½" * 9999, 10000), ("é1" * 9999, 9999), ("  1" * 9999, 9999)):
        marked, num_cuts, _ = digits.cut_digits(text.encode(), b"12345678")
        assert num_cuts == cut and marked.count(b"12345678") == cut
        assert marked.replace(b"12345678", b"") == text.encode()
