"""Fast engines: ids equal to HF tokenizers', or not used."""

import itertools
import json
import random
import unicodedata

import numpy as np
import pytest
import tokenizers
from tokenizers import pre_tokenizers

from fixedcode_megatron.data import engine_check, engines
from fixedcode_megatron.data.characters import find_unknown
from fixedcode_megatron.data.digits import cut_digits, is_digits_then_gpt2
from fixedcode_megatron.data.encoding import EncodedBlock, EncodedColumn, put_in_pending
from fixedcode_megatron.data.engine_check import candidates, compare, probes
from fixedcode_megatron.data.engines import (
    CUT,
    END,
    ENGINES,
    EngineError,
    EngineMismatch,
    EnginePlan,
    plan_engine,
)
from fixedcode_megatron.data.fast_encoder import FastEncoder
from fixedcode_megatron.data.marked_text import MarkedText
from fixedcode_megatron.data.tokenizers import build_tokenizer
from fixedcode_megatron.data.unassigned import split_classes
from fixedcode_megatron.errors import UserError

TRAINING = [
    "the quick brown fox jumps over a lazy dog's, isn't it's? don't they'll we've \n\n  indented\n",
    "def function(self, value): return value[0] + 12345 # comment   \n\tif x == 10:\n",
    "Ünïcödé тест 漢字 ½ ² ٣ 한국어 “quotes” — dash … \u00a0\u3000 😀👍🏽",
]


def make(path, *, digits, missing=(), size=400):
    """A byte-level BPE trained on a few lines; `missing` bytes have no id."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if digits:
        split = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), split])
    inner.pre_tokenizer = split
    inner.decoder = tokenizers.decoders.ByteLevel()
    alphabet = [c for i, c in enumerate(engines._BYTE_SPELLINGS) if i not in missing]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>", "<extra>"], initial_alphabet=alphabet,
        show_progress=False,
    )  # fmt: skip
    inner.train_from_iterator(TRAINING * 20, trainer)
    path.mkdir()
    inner.save(str(path / "tokenizer.json"))
    return build_tokenizer("HuggingFaceTokenizer", str(path))


def adversarial(count):
    rng = random.Random(11)
    atoms = [*engine_check._ATOMS, "1", " ", " ", "\n", "2", "\u2009", "¼", "<extra>"]
    texts = ["".join(rng.choices(atoms, k=rng.randint(1, 60))) for _ in range(count)]
    planes = ((0, 0x7F), (0, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))
    texts += [
        "".join(chr(rng.randint(*rng.choice(planes))) for _ in range(rng.randint(1, 40)))
        for _ in range(count)
    ]
    return [*texts, "", "  ", "x" * 5000, " " * 3000 + "1", "12" * 2000, "\n" * 999 + "7"]


def encode(encoder, texts):
    """Ids of each text."""
    found, pending = encoder.encode_marked(MarkedText.of(texts))
    assert not pending
    return np.split(found.ids, np.cumsum(found.lengths)[:-1])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("digits", [False, True])
@pytest.mark.parametrize("missing", [(), (0x04, 0x13, 0xC1, 0xF5)])
def test_ids_equal_those_of_hf_tokenizers(tmp_path, engine, digits, missing):
    tokenizer = make(tmp_path / "t", digits=digits, missing=missing)
    texts = adversarial(1500) + probes() + TRAINING
    plan = plan_engine(tokenizer, engine)
    assert plan.cut_digits == digits and plan.first_missing == tokenizer.vocab_size
    found = encode(FastEncoder(plan, lambda: tokenizer), texts)
    expected = tokenizer.encode_batch(texts)
    compare(texts, expected, found)
    assert [ids.tolist() for ids in found] == expected
    if missing:  # HF tokenizers drops such a byte; the engine's document was encoded again
        assert "\x04" in "".join(texts) and "\x13" not in "".join(map(tokenizer.decode, expected))


@pytest.mark.parametrize("engine", ENGINES)
def test_ids_that_an_engine_gives_without_hf_tokenizers(tmp_path, engine):
    """Documents with a byte that has no id, or with a marker, are left out, not encoded wrongly."""
    tokenizer = make(tmp_path / "t", digits=True, missing=(0x04,))
    texts = ["the quick", "a\x04b", "", f"brown {END}", "fox 12  3", f"{CUT}", "\ufdd0 \U0001fffe9"]
    encoder = FastEncoder(plan_engine(tokenizer, engine), lambda: 1 / 0)
    own = encoder.encode_alone(texts)
    assert own.texts == ["the quick", "", "fox 12  3", "\ufdd0 \U0001fffe9"]
    assert [ids.tolist() for ids in own.ids] == tokenizer.encode_batch(own.texts)
    assert encoder.encode_alone(["a\x04b"]).texts == []


def test_special_spellings_stay_text_or_are_parsed(tmp_path):
    make(tmp_path / "t", digits=False)
    for parse in (False, True):
        tokenizer = build_tokenizer(
            "HuggingFaceTokenizer", str(tmp_path / "t"), parse_special_tokens=parse
        )
        texts = ["a<|endoftext|>b", "<extra>", "<|endoftext|><|endoftext|>"]
        expected = tokenizer.encode_batch(texts)
        ids = {*itertools.chain(*expected)}
        assert (0 in ids) == parse and (1 in ids) == parse
        for engine in ENGINES:
            encoder = FastEncoder(plan_engine(tokenizer, engine), lambda t=tokenizer: t)
            assert [ids.tolist() for ids in encode(encoder, texts)] == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_added_tokens_that_are_not_special(tmp_path, engine):
    """They are parsed always; engines are tried on their spellings before they are used."""
    make(tmp_path / "t", digits=False)
    path = str(tmp_path / "t/tokenizer.json")
    inner = tokenizers.Tokenizer.from_file(path)
    inner.add_tokens([tokenizers.AddedToken("<tag>", special=False), "fox es"])
    inner.save(path)
    tokenizer = build_tokenizer("HuggingFaceTokenizer", path)
    assert tokenizer.added_spellings == ["<|endoftext|>", "<extra>", "<tag>", "fox es"]
    texts = [text for text in probes(tokenizer.added_spellings) if "<tag>" in text]
    assert any(inner.token_to_id("<tag>") in ids for ids in tokenizer.encode_batch(texts))
    encoder = FastEncoder(plan_engine(tokenizer, engine), lambda: tokenizer)
    compare(texts, tokenizer.encode_batch(texts), encode(encoder, texts))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a1 2", "a1 2"),
        ("a  1  2", "a  |1  |2"),
        ("\t 1\n\n2 3", "\t |1\n\n|2 3"),
        ("x½y", "x|½|y"),
        ("²③ Ⅷ", "|²|③| |Ⅷ|"),
        ("𝟙a𐄇", "|𝟙|a|𐄇|"),
        ("\u00a0\u00a03", "\u00a0\u00a0|3"),
        ("é1 é 1", "é|1 é |1"),  # not needed, and no harm
        ("a\u2003 1", "a\u2003 |1"),
        ("1", "1"),
        ("", ""),
    ],
)
def test_where_documents_are_cut(text, pieces):
    marked, num_cuts, (unknown, _) = cut_digits(text.encode(), b"|")
    assert len(unknown) == 0
    assert marked.decode() == pieces and num_cuts == pieces.count("|")


def test_characters_that_this_python_does_not_know_are_named():
    """U+0378 is no character yet; U+088F and U+323B0 are since Unicode 17; U+FDD0 will never be."""
    places, codes = cut_digits("é\u0378 1".encode(), b"|")[2]
    assert places.tolist() == [2] and codes.tolist() == [0x378]
    places, codes = find_unknown("é\u0378\ufdd0\u088f½\U000323b0\U0001ffff".encode())
    assert places.tolist() == [2, 7, 12] and codes.tolist() == [0x378, 0x88F, 0x323B0]


NEWER = ["the \u088f's fox", "\U000323b0's 1", "\u0c5c's", "\ua7ce's \U00010940's", "a\U00011de0's"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("digits", [False, True])
def test_characters_that_an_engine_may_know_and_hf_tokenizers_does_not(tmp_path, engine, digits):
    """gigatoken takes U+088F for a letter, so that 's is a suffix; HF tokenizers does not.

    fastokens' tables are older. But the digits that HF tokenizers splits are as new as gigatoken's.
    """
    tokenizer = make(tmp_path / "t", digits=digits)
    texts = ["it's", "fox \u0378's \u05f5's", "\U00034fff", *NEWER]
    encoder = FastEncoder(plan_engine(tokenizer, engine), lambda: tokenizer)
    assert [ids.tolist() for ids in encode(encoder, texts)] == tokenizer.encode_batch(texts)
    trusts_itself = engine == "gigatoken" or not digits
    own = texts if engine == "fastokens" else texts[:3]
    assert encoder.encode_alone(texts).texts == (own if trusts_itself else [texts[0], texts[2]])
    proofs = encoder.proofs()
    assert [text[0] for text in proofs[:2]] == ["\u0378", "\u05f5"] * trusts_itself
    own = encoder.encode_alone(proofs)
    compare(proofs, tokenizer.encode_batch(proofs), own.ids)
    assert encoder.proofs() == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("digits", [False, True])
def test_every_character_that_this_python_does_not_know(tmp_path, engine, digits):
    tokenizer = make(tmp_path / "t", digits=digits)
    encoder = FastEncoder(plan_engine(tokenizer, engine), lambda: 1 / 0)
    unknown = [c for c in map(chr, range(0x80, 0x34000)) if unicodedata.category(c) == "Cn"]
    texts = [f"{c}'s {c} a{c}1{c} 's{c}  {c}{c}'t\n{c}" for c in unknown]
    own = encoder.encode_alone(texts)
    trusts_itself = engine == "gigatoken" or not digits
    assert 5000 * trusts_itself < len(own.texts) <= len(texts)
    compare(own.texts, tokenizer.encode_batch(own.texts), own.ids)


def test_a_vocabulary_in_which_an_engine_cannot_be_asked(tmp_path):
    """Without the token 's nothing shows what the engine takes for a letter."""
    make(tmp_path / "t", digits=False)
    path = tmp_path / "t" / "tokenizer.json"
    tree = json.loads(path.read_text())
    tree["model"]["merges"] = [pair for pair in tree["model"]["merges"] if "'" not in "".join(pair)]
    path.write_text(json.dumps(tree))
    tokenizer = build_tokenizer("HuggingFaceTokenizer", str(path))
    encoder = FastEncoder(plan_engine(tokenizer, "gigatoken"), lambda: tokenizer)
    assert encoder.encode_alone(["fox", "\u0378"]).texts == ["fox"] and encoder.proofs() == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("digits", [False, True])
def test_hf_tokenizers_get_only_a_piece_of_a_long_document(tmp_path, engine, digits):
    tokenizer = make(tmp_path / "t", digits=digits, missing=(0x04,))
    asked = []

    class Asked:
        def encode_batch(self, texts):
            asked.append(texts)
            return tokenizer.encode_batch(texts)

    rng = random.Random(7)
    encoder = FastEncoder(plan_engine(tokenizer, engine), Asked)
    words = ["the", "fox ", "it's", "12 ", "\n", " ", "é", "漢", "jumps", "\x04"]
    for _ in range(20):
        text = " ".join(rng.choices(words[:-1], k=rng.randint(10, 8000)))
        for _ in range(rng.randint(1, 3)):
            place = rng.randint(0, len(text))
            text = text[:place] + rng.choice(["\x04", "\x04 fox", "\u088f's\x04"]) + text[place:]
        texts = ["the fox", text, ""]
        asked.clear()
        assert [x.tolist() for x in encode(encoder, texts)] == tokenizer.encode_batch(texts)
        (pieces,) = asked
        assert 1 <= len(pieces) <= 3 and max(map(len, pieces)) < 2300
        assert all("\x04" in piece for piece in pieces)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_few_pieces_are_left_to_the_caller(tmp_path, engine):
    """Who has HF tokenizers puts their ids in; a worker loads them when it has left enough."""
    tokenizer = make(tmp_path / "t", digits=True, missing=(0x04, 0x13))
    rng = random.Random(8)
    asked = []

    def load():
        asked.append(encoder._may_leave)
        return tokenizer

    encoder = FastEncoder(plan_engine(tokenizer, engine), load)
    words = ["the fox", "it's", "12", "  3", "\n", "é", "jumps"]
    left = 0
    for number in range(30):
        texts = ["", "fox"]
        for _ in range(3):
            chosen = rng.choices(words, k=rng.choice((1, 3, 30, 2000)))
            for _ in range(rng.randrange(3)):
                unusual = rng.choice(("\x04", "\x13fox", "\u088f's"))
                chosen.insert(rng.randint(0, len(chosen)), unusual)
            texts.insert(rng.randrange(2), " ".join(chosen))
        texts += ["\x04", "\x13"] * (number == 20)
        found, pending = encoder.encode_marked(MarkedText.of(texts), "uint16", eod=0)
        left += sum(len(piece.text) for piece in pending)
        column = EncodedColumn(found.ids, found.lengths.astype(np.int32), pending=pending)
        put_in_pending(EncodedBlock([column]), tokenizer)
        expected = [[*ids, 0] if ids else [] for ids in tokenizer.encode_batch(texts)]
        assert column.ids.dtype == np.uint16 and column.pending == []
        parts = np.split(column.ids, np.cumsum(column.lengths)[:-1])
        assert [part.tolist() for part in parts] == expected
    assert 20_000 < left <= 1 << 15 and encoder._may_leave == (1 << 15) - left
    assert len(asked) == 1  # a document of nothing else is never left


@pytest.mark.parametrize(
    ("splitter", "added", "can_cut"),
    [
        ({"type": "ByteLevel", "add_prefix_space": False}, {}, True),
        ({"type": "ByteLevel", "add_prefix_space": True}, {}, False),
        ({"type": "ByteLevel", "use_regex": False}, {}, False),
        ({"type": "Split", "pattern": {"Regex": "[^ ]+ ?"}}, {}, False),
        ({"type": "ByteLevel"}, {"content": "the fox"}, False),
        ({"type": "ByteLevel"}, {"content": "the", "rstrip": True}, False),
        ({"type": "ByteLevel"}, {"content": "the", "lstrip": True}, False),
    ],
)
def test_whose_documents_can_be_cut(tmp_path, splitter, added, can_cut):
    make(tmp_path / "t", digits=False)
    path = tmp_path / "t" / "tokenizer.json"
    tree = json.loads(path.read_text())
    tree["pre_tokenizer"] = {"add_prefix_space": False, "trim_offsets": True, **splitter}
    if splitter["type"] == "Split":
        tree["pre_tokenizer"] = {**splitter, "behavior": "Isolated", "invert": False}
    if added:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        tree["added_tokens"].append({"id": tree["model"]["vocab"]["e"], **flags, **added})
    path.write_text(json.dumps(tree))
    tokenizer = build_tokenizer("HuggingFaceTokenizer", str(path))
    assert plan_engine(tokenizer, "gigatoken").can_cut == can_cut


LETTERS = r" ?\p{L}+| ?\p{N}{1,3}|\s+"


@pytest.mark.parametrize(
    ("splitter", "classes"),
    [
        ({"type": "ByteLevel"}, "LN"),
        ({"type": "Split", "pattern": {"Regex": LETTERS}}, "LN"),
        ({"type": "Split", "pattern": {"Regex": r"[\p{Lu}\pM]|\p{^N}|\P{L}"}}, "LNM"),
        ({"type": "Digits"}, "LND"),
        ({"type": "Split", "pattern": {"Regex": LETTERS + r"|[\p{P}\p{S}]+"}}, None),
        ({"type": "Split", "pattern": {"Regex": r"\p{Latin}+"}}, None),
        ({"type": "Split", "pattern": {"Regex": r"\w+"}}, None),
        ({"type": "Split", "pattern": {"Regex": "[[:alpha:]]+"}}, None),
        ({"type": "Punctuation"}, None),
    ],
)
def test_by_which_classes_text_is_split(splitter, classes):
    both = {"type": "Sequence", "pretokenizers": [splitter, {"type": "ByteLevel"}]}
    for tree in (splitter, both):
        assert split_classes({"pre_tokenizer": tree}) == classes
        assert split_classes({"pre_tokenizer": tree, "normalizer": {"type": "NFC"}}) is None


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("digits", [False, True])
def test_texts_that_hold_the_markers(tmp_path, engine, digits):
    tokenizer = make(tmp_path / "t", digits=digits)
    first, second = END
    texts = ["the fox", END, f"a{END}b  1", CUT, first, f"12{second}", f"{first}{CUT}", "", "½"]
    # A lost marker and a gained one, or halves of one in two texts, leave their number as it is.
    tricky = [[f"a{second}", f"b{END}c"], [f"a{second}", f"the {first} fox"], [f"a{first}", second]]
    for order in (texts, texts[::-1], [END, "", END], [first, second], *tricky):
        encoder = FastEncoder(plan_engine(tokenizer, engine), lambda: tokenizer)
        compare(order, tokenizer.encode_batch(order), encode(encoder, order))


def test_digits_are_only_cut_where_no_token_joins_them(tmp_path):
    tree = make(tmp_path / "t", digits=True).definition()
    assert is_digits_then_gpt2(tree)
    tree["model"]["merges"].append(["1", "2"])
    assert not is_digits_then_gpt2(tree)
    assert not is_digits_then_gpt2(make(tmp_path / "u", digits=False).definition())


@pytest.mark.parametrize("absent", ["added_tokens", "pre_tokenizer"])
def test_a_tokenizer_file_may_leave_out_what_it_does_not_have(tmp_path, absent):
    make(tmp_path / "t", digits=False)
    path = tmp_path / "t" / "tokenizer.json"
    tree = json.loads(path.read_text())
    del tree[absent]
    path.write_text(json.dumps(tree))
    tokenizer = build_tokenizer("HuggingFaceTokenizer", str(path))
    texts = ["the fox", "", "a b"]
    chosen = set()
    for plan in filter(None, candidates(tokenizer, "auto")):
        encoder = FastEncoder(plan, lambda: tokenizer)
        try:
            compare(texts, tokenizer.encode_batch(texts), encode(encoder, texts))
            chosen.add(plan.engine)
        except EngineMismatch:
            continue
    # Without a pre-tokenizer gigatoken still splits, which the comparison finds.
    assert chosen == ({*ENGINES} if absent == "added_tokens" else {"fastokens"})


def test_a_difference_is_found_and_named(tmp_path):
    tokenizer = make(tmp_path / "t", digits=False)
    texts = ["fine", "the quick"]
    found = [np.array(ids) for ids in tokenizer.encode_batch(texts)]
    compare(texts, tokenizer.encode_batch(texts), found)
    found[-1][-1] += 1
    with pytest.raises(EngineMismatch, match=r"begins 'the quick' \(token \d+"):
        compare(texts, tokenizer.encode_batch(texts), found)


def test_which_engines_are_tried(tmp_path):
    tokenizer = make(tmp_path / "t", digits=False)
    names = [plan.engine if plan else "hf" for plan in candidates(tokenizer, "auto")]
    assert names == [*ENGINES, "hf"]
    assert candidates(tokenizer, "hf") == [None]
    plain = build_tokenizer("ByteLevelTokenizer")
    assert candidates(plain, "auto") == [None]
    with pytest.raises(UserError, match="--tokenizer-engine gigatoken: engines do not read"):
        candidates(plain, "gigatoken")
    with pytest.raises(UserError, match="give auto, hf, gigatoken or fastokens"):
        candidates(tokenizer, "rust")


def test_what_an_engine_cannot_do_is_an_error_of_its_own(tmp_path, monkeypatch):
    tokenizer = make(tmp_path / "t", digits=False)
    plan = plan_engine(tokenizer, "gigatoken")
    with pytest.raises(EngineError, match="cannot read this tokenizer"):
        FastEncoder(EnginePlan("gigatoken", b"{}", False, 9, "LN", True), lambda: tokenizer)
    monkeypatch.setitem(engines._BUILDERS, "gigatoken", lambda _: __import__("no_such_library"))
    with pytest.raises(EngineError, match="not installed: pip install gigatoken"):
        FastEncoder(plan, lambda: tokenizer)


@pytest.mark.parametrize(
    ("start", "growth", "full"),
    [
        (100, [0, *[10] * 9, 5, 1, 0], [12]),  # over 195 in all
        (150, [*[12] * 6, 5, 1, 0], [8]),  # over 77 more than at the start
        (80, [0, 40, 0, 0, 0, 0], [4]),  # the next would add 80 beside 80: 200 over the start
        (80, [0, 0, 0, 40, 0, 0, 0, 0], [7]),  # that comes after twice the text
        (80, [*[0] * 8, 20, 40, 0, 0, 0, 0], [10]),  # at once where the text has changed
        (80, [0, 30, 0, 0, 0, 0, 0], []),  # 150 over the start
        (80, [0, 40, 0, 13, 0, 0, 0, 0], []),  # a later one, of less
    ],
)
def test_the_cache_of_words_is_bounded(tmp_path, monkeypatch, start, growth, full):
    """gigatoken's cache never shrinks: it says that it is full when the process grew.

    Parameters
    ----------
    start, growth
        Megabytes of the process with an empty cache, and what each of equal texts adds.
    full
        After which texts, counted from 1.
    """
    tokenizer = make(tmp_path / "t", digits=False)
    engine = engines.build_engine(plan_engine(tokenizer, "gigatoken"))
    expected = tokenizer.encode_batch(["the fox"])[0]
    memory, texts, found = start, 0, []

    class Growing:
        def encode(self, text, encode=engine._backend.encode):
            nonlocal memory, texts
            memory += growth[texts]
            texts += 1
            return encode(text)

    monkeypatch.setattr(engines, "resident_bytes", lambda: memory << 20)
    for _ in growth:
        if engine.is_full():
            found.append(texts)
            memory = start
            engine.rebuild()
            assert not engine.is_full()
        if texts in (0, *found):
            engine._backend = Growing()
        assert engine.encode(b"the fox").tolist() == expected
    assert found == full


def test_definition_is_whole_json(tmp_path):
    tree = make(tmp_path / "t", digits=True).definition()
    assert tree["added_tokens"] == [] and tree["post_processor"] is None
    assert json.loads(json.dumps(tree))["model"]["type"] == "BPE"
