"""Tokenizers: ids without special tokens, end of document, sizes, clear refusals."""

import base64
import json
import sys

import pytest
import tokenizers

from fixedcode_megatron.data.bpe import train_byte_level_bpe
from fixedcode_megatron.data.tokenizers import build_tokenizer
from fixedcode_megatron.errors import UserError

WORDS = {"<s>": 0, "</s>": 1, "hi": 2, "you": 3, "all": 9}


def word_tokenizer(path, words=WORDS, special=("<s>", "</s>")):
    """A word-level tokenizer whose post-processor adds <s> and </s>."""
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="hi"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(list(special))
    if special:
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    inner.enable_truncation(max_length=3)
    inner.enable_padding(length=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    inner.save(str(path))
    return path


def test_no_special_token_no_truncation_no_padding(tmp_path):
    """Case 4."""
    path = word_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = build_tokenizer("HuggingFaceTokenizer", str(path))
    assert tokenizer.encode_batch(["hi you all hi you", ""]) == [[2, 3, 9, 2, 3], []]
    assert tokenizer.eod == 1
    assert tokenizer.vocab_size == 10  # largest id + 1, not the 5 entries


def test_special_spelling_in_text_is_text(tmp_path):
    train_byte_level_bpe(["a b c"], 257, tmp_path / "tokenizer.json", progress=False)
    tokenizer = build_tokenizer("HuggingFaceTokenizer", str(tmp_path))
    (ids,) = tokenizer.encode_batch(["a<|endoftext|>b"])
    assert tokenizer.eod == 0
    assert 0 not in ids
    assert len(ids) == len("a<|endoftext|>b")  # 257 ids leave no merge: one id a byte
    assert tokenizer.decode(ids) == "a<|endoftext|>b"
    assert tokenizer.decode([*ids, 0]).endswith("b<|endoftext|>")


def test_eod_comes_from_the_configuration_beside_the_file(tmp_path):
    path = word_tokenizer(tmp_path / "tokenizer.json")
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": {"content": "all"}}))
    assert build_tokenizer("HuggingFaceTokenizer", str(path)).eod == 9
    config.write_text(json.dumps({"eos_token": "none such"}))
    with pytest.raises(UserError, match="'none such' is not in the vocabulary"):
        build_tokenizer("HuggingFaceTokenizer", str(path))


def test_no_eod_is_refused_only_when_asked_for(tmp_path):
    path = word_tokenizer(tmp_path / "tokenizer.json", {"hi": 0, "you": 1}, special=())
    tokenizer = build_tokenizer("HuggingFaceTokenizer", str(path))
    assert tokenizer.eod_id is None
    with pytest.raises(UserError, match=r"tokenizer.json has no end-of-document.*--append-eod"):
        _ = tokenizer.eod


def test_fingerprint_is_of_the_content(tmp_path):
    first = word_tokenizer(tmp_path / "a" / "tokenizer.json")
    same = word_tokenizer(tmp_path / "b" / "tokenizer.json")
    other = word_tokenizer(tmp_path / "c" / "tokenizer.json", {**WORDS, "all": 8})
    prints = [
        build_tokenizer("HuggingFaceTokenizer", str(p)).fingerprint for p in (first, same, other)
    ]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("HuggingFaceTokenizer", None), "needs --tokenizer-model"),
        (("HuggingFaceTokenizer", "/none/such"), "no such file"),
        (("HuggingFaceTokenizer", "."), "the folder holds no tokenizer.json"),
        (("HuggingFaceTokenizer", __file__), "not a tokenizer.json"),
        (("GPT2BPETokenizer", None, "v.json"), "needs --merge-file"),
        (("NullTokenizer",), "needs --vocab-size"),
        (("Hugging",), "give one of HuggingFaceTokenizer"),
    ],
)
def test_refusals(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        build_tokenizer(*arguments)


def test_bytes_and_numbers():
    tokenizer = build_tokenizer("ByteLevelTokenizer")
    assert tokenizer.encode_batch(["hé"]) == [[104, 195, 169]]
    assert tokenizer.decode([104, 195, 169, 256]) == "hé"
    assert (tokenizer.vocab_size, tokenizer.eod) == (257, 256)
    numbers = build_tokenizer("NullTokenizer", vocab_size=10)
    assert numbers.encode_batch(["5 0 10"]) == [[5, 0, 10]]
    assert (numbers.vocab_size, numbers.eod) == (11, 10)
    with pytest.raises(UserError, match="below 11, found '11'"):
        numbers.encode_batch(["11"])


def test_gpt2_files(tmp_path):
    words = ["<|endoftext|>", "a", "b", "ab"]
    vocabulary = {word: i for i, word in enumerate(words)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    tokenizer = build_tokenizer(
        "GPT2BPETokenizer", None, str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")
    )
    assert tokenizer.encode_batch(["abba"]) == [[3, 2, 1]]
    assert (tokenizer.vocab_size, tokenizer.eod) == (4, 0)


def test_bpe_is_exact_and_repeatable(tmp_path):
    texts = ["the cat sat on the mat, the cats sat", "on that mat sat three cats"]
    for name in ("a", "b"):
        train_byte_level_bpe(iter(texts), 270, tmp_path / name, progress=False)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    inner = tokenizers.Tokenizer.from_file(str(tmp_path / "a"))
    assert inner.get_vocab_size() == 270
    assert inner.id_to_token(0) == "<|endoftext|>"
    with pytest.raises(UserError, match="text is too small"):
        train_byte_level_bpe(iter(texts), 5000, tmp_path / "c", progress=False)
    assert not (tmp_path / "c").exists()


def test_gpt2_files_can_parse_the_end_of_text(tmp_path):
    words = ["<|endoftext|>", *"<|>abdefnotx", "ab"]
    (tmp_path / "v.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (tmp_path / "m.txt").write_text("#version: 0.2\na b\n")
    files = ("GPT2BPETokenizer", None, str(tmp_path / "v.json"), str(tmp_path / "m.txt"))
    (plain,) = build_tokenizer(*files).encode_batch(["ab<|endoftext|>"])
    (parsed,) = build_tokenizer(*files, parse_special_tokens=True).encode_batch(["ab<|endoftext|>"])
    assert (len(plain), parsed) == (14, [len(words) - 1, 0])


def test_sentencepiece(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    lines = ["hello world, hello there", "the world is there", "<s> is text </s> here"] * 50
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(tmp_path / "m"), vocab_size=50,
        model_type="bpe", byte_fallback=False, minloglevel=2,
    )  # fmt: skip
    library = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    for kind in ("SentencePieceTokenizer", "GPTSentencePieceTokenizer"):
        tokenizer = build_tokenizer(kind, str(tmp_path / "m.model"))
        texts = ["hello there", "", "world </s> 你"]
        assert tokenizer.encode_batch(texts) == [library.encode(t) for t in texts]
        assert (tokenizer.vocab_size, tokenizer.eod) == (50, 2)
        assert 2 not in tokenizer.encode_batch(["</s>"])[0]  # control symbols are never read
        assert tokenizer.decode(library.encode("hello there")) == "hello there"
    with pytest.raises(UserError, match="--parse-special-tokens"):
        build_tokenizer(
            "SentencePieceTokenizer", str(tmp_path / "m.model"), parse_special_tokens=True
        )
    with pytest.raises(UserError, match="not a SentencePiece model"):
        build_tokenizer("SentencePieceTokenizer", __file__)


def ranks(*merged):
    return {**{bytes([i]): i for i in range(256)}, **{m: 256 + i for i, m in enumerate(merged)}}


def test_tiktoken_files(tmp_path):
    pytest.importorskip("tiktoken")
    lines = [f"{base64.b64encode(t).decode()} {r}" for t, r in ranks(b"ab", b" ab").items()]
    path = tmp_path / "mine.tiktoken"
    path.write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"--tiktoken-pattern None: mine\.tiktoken does not tell"):
        build_tokenizer("TikTokenizer", str(path))
    tokenizer = build_tokenizer("TikTokenizer", str(path), tiktoken_pattern="gpt2")
    assert tokenizer.encode_batch(["ab ab", "<|endoftext|>"]) == [
        [256, 257], list(b"<|endoftext|>"),
    ]  # fmt: skip
    assert (tokenizer.vocab_size, tokenizer.eod) == (259, 258)
    parsing = build_tokenizer(
        "TikTokenizer", str(path), tiktoken_pattern="gpt2", parse_special_tokens=True
    )
    assert parsing.encode_batch(["ab<|endoftext|>"]) == [[256, 258]]
    assert parsing.fingerprint != tokenizer.fingerprint
    path.rename(tmp_path / "cl100k_base.tiktoken")
    known = build_tokenizer("TikTokenizer", str(tmp_path / "cl100k_base.tiktoken"))
    assert (known.vocab_size, known.eod) == (100258, 100257)


def test_megatron_s_json_of_ranks_begins_after_a_thousand_specials(tmp_path):
    pytest.importorskip("tiktoken")
    entries = [
        {"rank": r, "token_bytes": base64.b64encode(t).decode(), "token_str": ""}
        for t, r in ranks(b"ab").items()
    ]
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps(entries))
    tokenizer = build_tokenizer("TikTokenizer", str(path))
    assert tokenizer.encode_batch(["ab1"]) == [[1256, 1000 + ord("1")]]
    assert (tokenizer.vocab_size, tokenizer.eod) == (1257, 2)  # <unk>, <s>, </s>


@pytest.mark.parametrize("library", ["sentencepiece", "tiktoken"])
def test_a_missing_library_is_named(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    kind = {"sentencepiece": "SentencePieceTokenizer", "tiktoken": "TikTokenizer"}[library]
    with pytest.raises(UserError, match=f"pip install {library}"):
        build_tokenizer(kind, "m")
