"""Tokenizers: ids without special tokens, end of document, sizes, clear refusals."""

import json

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
