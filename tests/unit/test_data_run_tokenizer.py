"""The tokenizer of a run: in training, export, generation and evaluation the same."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from fixedcode_megatron.data.run_tokenizer import run_tokenizer
from fixedcode_megatron.data.tokenizers import NullTokenizer
from fixedcode_megatron.errors import UserError


def written(path, words):
    path.mkdir()
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path / "tokenizer.json"))
    return str(path)


@pytest.fixture
def abc(tmp_path):
    return written(tmp_path / "abc", ["a", "b", "c", "<|endoftext|>"])


def test_without_a_tokenizer_ids_have_no_meaning():
    tokenizer = run_tokenizer({"vocab_size": 50})
    assert isinstance(tokenizer, NullTokenizer) and tokenizer.vocab_size == 50
    named = {"tokenizer_type": "NullTokenizer", "tokenizer_model": "unread", "vocab_size": 50}
    assert run_tokenizer(named).fingerprint == tokenizer.fingerprint
    with pytest.raises(UserError, match="--vocab-size"):
        run_tokenizer({})


def test_where_it_lies_now_comes_before_where_it_lay(abc, tmp_path):
    settings = {"tokenizer_type": None, "tokenizer_model": str(tmp_path / "moved"), "vocab_size": 4}
    tokenizer = run_tokenizer(settings, abc)
    assert tokenizer.encode_batch(["c a"]) == [[2, 0]]
    assert run_tokenizer({"tokenizer_model": abc}).fingerprint == tokenizer.fingerprint


def test_another_tokenizer_than_the_models_is_refused(abc, tmp_path):
    fingerprint = run_tokenizer({"tokenizer_model": abc}).fingerprint
    other = written(tmp_path / "other", ["b", "a", "c", "<|endoftext|>"])
    assert run_tokenizer({"tokenizer_model": abc}, None, fingerprint).vocab_size == 4
    with pytest.raises(UserError, match=f"--tokenizer-model {other}: not the tokenizer"):
        run_tokenizer({"tokenizer_model": abc}, other, fingerprint)


def test_a_run_on_ids_takes_a_tokenizer_that_fits(abc, caplog):
    settings = {"tokenizer_type": "NullTokenizer", "vocab_size": 4}
    assert run_tokenizer(settings, abc).encode_batch(["b"]) == [[1]]
    assert "nothing in it says" in caplog.text
    with pytest.raises(UserError, match="it has 4 ids, the model 3"):
        run_tokenizer(settings | {"vocab_size": 3}, abc)


def test_gpt2s_two_files_in_another_folder(tmp_path):
    """`--tokenizer-model` names the folder; the files keep their names."""
    home = tmp_path / "now"
    home.mkdir()
    words = {"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}
    (home / "v.json").write_text(json.dumps(words))
    (home / "m.txt").write_text("#version: 0.2\na b\n")
    settings = {
        "tokenizer_type": "GPT2BPETokenizer",
        "tokenizer_model": None,
        "vocab_file": str(tmp_path / "then" / "v.json"),
        "merge_file": str(tmp_path / "then" / "m.txt"),
    }
    assert run_tokenizer(settings, str(home)).encode_batch(["ab"]) == [[2]]
    with pytest.raises(UserError, match="then"):
        run_tokenizer(settings)
