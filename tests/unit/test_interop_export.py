"""Folders, tokenizers, refusals: what needs no process group."""

import dataclasses
import json
import random

import pytest
import torch

from fixedcode_megatron.codes import TokenCode
from fixedcode_megatron.config.tree import default_config
from fixedcode_megatron.data.tokenizers import build_tokenizer
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.interop.architecture import Architecture, architecture_of
from fixedcode_megatron.interop.convert_command import main as convert
from fixedcode_megatron.interop.hf_folder import INDEX, FolderTensors, atomically, write_tensors
from fixedcode_megatron.interop.hf_import import common_state, trained_table
from fixedcode_megatron.interop.hf_tokenizer_files import write_tokenizer
from fixedcode_megatron.interop.llama_config import settings_of_llama
from fixedcode_megatron.interop.modeling_fixedcode import CodeInput, FixedCodeConfig
from fixedcode_megatron.interop.pieces import Piece, cut, join

LLAMA = dict(
    architectures=["LlamaForCausalLM"],
    hidden_act="silu",
    vocab_size=64,
    num_hidden_layers=1,
    hidden_size=16,
    intermediate_size=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    rms_norm_eps=1e-6,
    rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
)


def architecture(torch_version="2.13.0+cpu", **changes):
    found = settings_of_llama(LLAMA) | {"versions": {"torch": torch_version}}
    config = default_config().to_dict() | found["config"] | changes
    return architecture_of(found | {"config": config})


def test_a_llamas_settings():
    """Case 49: the base of the rotary frequencies is read wherever a release writes it."""
    a = architecture()
    assert (a.rotary_base, a.rotary_fraction, a.head_size, a.num_groups) == (500000, 1.0, 4, 2)
    older = {k: v for k, v in LLAMA.items() if k != "rope_parameters"} | {"rope_theta": 10000.0}
    assert settings_of_llama(older)["config"]["rotary_base"] == 10000
    assert not a.tied_head and not a.qkv_bias and a.norm_epsilon == 1e-6


@pytest.mark.parametrize(
    "changes, word",
    [
        (dict(architectures=["MistralForCausalLM"]), "MistralForCausalLM"),
        (dict(rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0}), "llama3"),
        (dict(attention_bias=True), "mlp_bias False"),
        (dict(hidden_act="gelu"), "hidden_act gelu"),
    ],
)
def test_other_llamas_are_refused(changes, word):
    with pytest.raises(UserError, match=word):
        settings_of_llama(LLAMA | changes)


@pytest.mark.parametrize(
    "version, changes, expected",
    [
        ("2.13.0+cpu", {}, "gelu"),
        ("2.13.0+cu130", {}, "gelu_pytorch_tanh"),
        ("2.13.0+cu130", dict(device="cpu"), "gelu"),
        ("2.13.0+cu130", dict(bias_activation_fusion=False), "gelu"),
        ("2.13.0+cpu", dict(bias_activation_fusion=True), "gelu_pytorch_tanh"),
        ("2.13.0+cu130", dict(add_bias_linear=False), "gelu"),
        ("2.13.0+cu130", dict(squared_relu=True), "relu2"),
    ],
)
def test_which_gelu_it_was(version, changes, expected):
    """megatron-core fuses biases with the tanh approximation, on GPUs and unless told not to."""
    gelu = dict(swiglu=False, add_bias_linear=True) | changes
    assert architecture(version, **gelu).activation == expected


@pytest.mark.parametrize("fused, expected", [(True, "gelu_pytorch_tanh"), (False, "gelu")])
def test_a_checkpoint_says_which_gelu_it_was(fused, expected):
    """Whatever its torch and its flags suggest."""
    found = settings_of_llama(LLAMA) | {"versions": {"torch": "2.13.0+cu130"}}
    changes = dict(swiglu=False, add_bias_linear=True, bias_activation_fusion=not fused)
    config = default_config().to_dict() | found["config"] | changes
    common = found | {"config": config, "bias_activation_fusion": fused}
    assert architecture_of(common).activation == expected


@pytest.mark.parametrize(
    "changes, word",
    [
        (dict(num_moe_experts=8), "--num-moe-experts 8"),
        (dict(rotary_interleaved=True), "--rotary-interleaved True"),
        (dict(glu_linear_offset=1.0), "--glu-linear-offset 1.0.*only models trained with 0.0"),
        (dict(softmax_scale=0.5), "--softmax-scale 0.5.*only models trained without it"),
    ],
)
def test_models_that_no_form_holds_are_refused(changes, word):
    with pytest.raises(UserError, match=word):
        architecture(**changes)


def test_query_groups_are_cut_apart():
    """Two groups of two query heads of width 1: rows q0 q1 k0 v0 q2 q3 k1 v1."""
    a: Architecture = architecture(kv_channels=1)
    fused = torch.tensor([0, 1, 10, 20, 2, 3, 11, 21])[:, None]
    piece = Piece("", None, ("q", "k", "v"), "qkv")
    parts = cut(piece, fused, a)
    assert [part.flatten().tolist() for part in parts] == [[0, 1, 2, 3], [10, 11], [20, 21]]
    assert torch.equal(join(piece, parts, a), fused)
    rows = Piece("", None, ("qkv",), "qkv_rows")
    [together] = cut(rows, fused, a)
    assert together.flatten().tolist() == [0, 1, 2, 3, 10, 11, 20, 21]
    assert torch.equal(join(rows, [together], a), fused)
    gated = Piece("", None, ("gate", "up"), "halves")
    assert [p.flatten().tolist() for p in cut(gated, fused, a)] == [[0, 1, 10, 20], [2, 3, 11, 21]]


CODES = [
    TokenCode.binary(70_000, num_bits=20, shift=0xABC, allow_partial_tile=True),
    TokenCode.gf2(70_000, seed=3, scale=0.1, offset=-0.3, allow_partial_tile=True),
    TokenCode.gf2(2**31, num_bits=32),
    TokenCode.random(70_000, num_bits=24, seed=2**64 - 1, scale=0.7, offset=0.1),
    TokenCode.random(70_000, num_bits=8, lift="interleave"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("code", CODES)
def test_the_modelling_files_codes_are_ours_bit_for_bit(code, dtype):
    draw = random.Random(5)
    ids = [0, 1, code.vocab_size - 1, *(draw.randrange(code.vocab_size) for _ in range(500))]
    width = 96
    config = FixedCodeConfig(
        vocab_size=code.vocab_size,
        hidden_size=width,
        input_interface=code.kind,
        token_code=json.loads(code.to_json()),
    )
    found = CodeInput(config)(torch.tensor(ids), dtype)
    assert found.dtype == dtype
    assert torch.equal(found, code.embed(torch.tensor(ids), width, dtype))


def test_shards_hold_what_they_should(tmp_path):
    """Four tensors of 40 bytes with room for 100: two shards of two, and an index."""
    tensors = {f"t{i}": torch.full((10,), float(i)) for i in range(4)}
    assert write_tensors(tmp_path, tensors.items(), 100) == 40
    index = json.loads((tmp_path / INDEX).read_text())
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert index["weight_map"] == dict(t0=names[0], t1=names[0], t2=names[1], t3=names[1])
    assert index["metadata"]["total_size"] == 160
    assert sorted(p.name for p in tmp_path.iterdir()) == [*names, INDEX]
    read = FolderTensors(tmp_path)
    assert all(torch.equal(read.read(name), value) for name, value in tensors.items())
    with pytest.raises(UserError, match="no tensor t9"):
        read.read("t9")


def test_an_export_is_there_whole_or_not_at_all(tmp_path):
    target = tmp_path / "model"
    with pytest.raises(OSError, match="full"), atomically(target) as folder:
        (folder / "config.json").write_text("{}")
        raise OSError("disk full")
    assert not list(tmp_path.iterdir())
    with atomically(target) as folder:
        (folder / "config.json").write_text("{}")
    assert [p.name for p in target.iterdir()] == ["config.json"]
    with pytest.raises(UserError, match="exists already"), atomically(target):
        pass


@pytest.fixture
def tokenizer_json(tmp_path):
    """A tokenizer of six words, the last of which ends a document."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["a", "b", "c", "d", "e", "<|endoftext|>"]
    model = models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="a")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    path = tmp_path / "home" / "tokenizer.json"
    path.parent.mkdir()
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("code", CODES[:2])
def test_a_table_that_was_trained_on_is_no_code(code, tmp_path):
    """One element that differs in its last bit is enough."""
    a = dataclasses.replace(
        architecture(), interface=code.kind, code=code, vocab_size=code.vocab_size, hidden_size=24
    )
    table = code.table(24)
    assert trained_table(tmp_path, table, a) is None
    table[69_999, 5] = table[69_999, 5].nextafter(torch.tensor(9.0))
    with pytest.raises(UserError, match="trained on"):
        trained_table(tmp_path, table, a)


def test_the_tokenizer_comes_along(tokenizer_json, tmp_path):
    """Case 50: transformers finds it, and the end-of-document token is its eos."""
    from transformers import AutoTokenizer

    ours = build_tokenizer("HuggingFaceTokenizer", str(tokenizer_json))
    saved = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": str(tokenizer_json)}
    target = tmp_path / "export"
    target.mkdir()
    assert write_tokenizer(target, saved, ours.fingerprint) == 5
    theirs = AutoTokenizer.from_pretrained(target)
    assert theirs.eos_token_id == 5
    assert theirs("b d a e").input_ids == ours.encode_batch(["b d a e"])[0] == [1, 3, 0, 4]
    found = settings_of_llama(LLAMA)
    imported = common_state(found, target)["config"]
    again = build_tokenizer(imported["tokenizer_type"], imported["tokenizer_model"])
    assert again.fingerprint == ours.fingerprint
    assert common_state(found, tmp_path)["config"]["tokenizer_model"] is None
    with pytest.raises(UserError, match="not the tokenizer"):
        write_tokenizer(target, saved, "another")


def test_a_vocabulary_with_merges_becomes_a_tokenizer_json(tmp_path):
    from transformers import AutoTokenizer

    vocabulary, merges = tmp_path / "vocab.json", tmp_path / "merges.txt"
    vocabulary.write_text('{"a": 0, "b": 1, "ab": 2, "\u0120": 3, "<|endoftext|>": 4}')
    merges.write_text("#version: 0.2\na b\n")
    names = dict(vocab_file=str(vocabulary), merge_file=str(merges))
    ours = build_tokenizer("GPT2BPETokenizer", **names)
    target = tmp_path / "export"
    target.mkdir()
    saved = {"tokenizer_type": "GPT2BPETokenizer", "tokenizer_model": None, **names}
    assert write_tokenizer(target, saved, ours.fingerprint) == 4
    theirs = AutoTokenizer.from_pretrained(target)
    assert theirs.eos_token_id == 4
    assert theirs("ab ba").input_ids == ours.encode_batch(["ab ba"])[0] == [2, 3, 1, 0]


def test_the_converter_says_what_is_wrong(tmp_path, capsys):
    flags = f"--load {tmp_path} --save {tmp_path / 'x'}".split()
    assert convert(["--from", "hf", "--to", "hf", *flags]) == 1
    assert "--from hf --to hf" in capsys.readouterr().err
    assert convert(["--from", "megatron", "--to", "hf", *flags]) == 1
    assert "holds no checkpoint" in capsys.readouterr().err
    assert convert(["--from", "hf", "--to", "megatron", *flags]) == 1
    assert "config.json does not exist" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    with pytest.raises(SystemExit):
        convert(["--from", "megatron", "--to", "hf", *flags, "--max-shard-size", "5"])
    assert "500MB" in capsys.readouterr().err
