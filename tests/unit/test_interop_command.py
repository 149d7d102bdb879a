"""`tools/generate.py` from a Hugging Face folder, in the ways that people call it."""

import io
import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fixedcode_megatron.interop.generate_command import main

NEW = ["--max-new-tokens", "5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama that always says "é", "x" by turns: two tokens of half a character each, then one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    path = tmp_path_factory.mktemp("llama")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=16,
        eos_token_id=alphabet.index("!"),
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    first, second, x, end = (*tokenizer.encode("é").ids, *tokenizer.encode("x!").ids)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(256))
        model.lm_head.weight.zero_()
        for token, following in ((first, second), (second, x), (x, first)):
            model.lm_head.weight[following, token] = 1.0
        model.lm_head.weight[end, tokenizer.encode("?").ids[0]] = 1.0
    model.save_pretrained(path)
    return path


def written(folder, capsys, *flags):
    assert main(["--load", str(folder), "--temperature", "0", *flags]) == 0
    return capsys.readouterr().out


def test_prompts_from_flags(folder, capsys):
    """Beyond the model's 16 positions, too."""
    assert written(folder, capsys, "--prompt", "ax", "--max-new-tokens", "30") == "éx" * 10 + "\n"
    found = written(folder, capsys, "--prompt", "x", "what?", "é", "--max-new-tokens", "3")
    assert found == "éx\n\nxé\n"


def test_half_a_character_is_never_written(folder, capsys, monkeypatch):
    parts = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: parts.extend(words))
    assert main(["--load", str(folder), "--temperature", "0", "--prompt", "x", *NEW]) == 0
    assert [part for part in parts if part] == ["é", "x", "é"]


def test_prompts_from_the_terminal(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("x\n\n?\né\n"))
    assert written(folder, capsys, "--max-new-tokens", "3") == "éx\n\nxé\n"


@pytest.mark.parametrize(
    "flags, word",
    [
        (["--temperature", "-1", "--prompt", "x"], "--temperature -1.0"),
        (["--temperature", "0", "--top-k", "5", "--seed", "0"], "leave out --top-k, --seed, or"),
        (["--prompt", ""], "prompt 0 is empty"),
        (["--device", "cuda", "--prompt", "x"], "--device cuda"),
        (["--load", "nowhere", "--prompt", "x"], "nowhere holds no checkpoint"),
        (["--load", "nowhere", "--prompt", "x", "--trust-remote-code"], "holds no code"),
    ],
)
def test_mistakes_are_one_line(folder, capsys, flags, word):
    if word == "--device cuda" and torch.cuda.is_available():
        pytest.skip("a GPU is there")
    assert main(["--load", str(folder), *flags]) == 1
    error = capsys.readouterr().err
    assert word in error and "Traceback" not in error
