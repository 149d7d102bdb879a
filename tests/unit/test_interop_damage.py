"""Folders that are damaged, incomplete or of another model: one line that names the file."""

import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM

from fixedcode_megatron.data.run_tokenizer import run_tokenizer
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.interop.convert_command import main as convert
from fixedcode_megatron.interop.generate_command import main as generate
from fixedcode_megatron.interop.hf_folder import INDEX, RECORD, SINGLE, FolderTensors
from fixedcode_megatron.interop.hf_import import import_folder
from fixedcode_megatron.interop.models import load_model

V, WIDTH, MLP = 20, 16, 24


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=WIDTH,
        intermediate_size=MLP,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=16,
        eos_token_id=[3, 7],
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def folder(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "folder")


def edit(path, **changes):
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))


def without(name):
    def change(folder):
        tensors = load_file(folder / SINGLE)
        del tensors[name]
        save_file(tensors, folder / SINGLE, metadata={"format": "pt"})

    return change


def cut_in_half(name):
    def change(folder):
        path = folder / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return change


NO_MAP = f"{INDEX} is damaged: it has no weight_map"
FAULTS = {
    "no JSON": (cut_in_half("config.json"), r"config\.json is damaged"),
    "no object": (lambda f: (f / "config.json").write_text("[1]"), "it holds no JSON object"),
    "no setting": (
        lambda f: edit(f / "config.json", num_hidden_layers=..., rms_norm_eps="small"),
        "positive number for num_hidden_layers, rms_norm_eps",
    ),
    "weights cut off": (cut_in_half(SINGLE), r"model\.safetensors is missing or damaged"),
    "no weights": (lambda f: (f / SINGLE).unlink(), "holds no model.safetensors and no"),
    "no map": (lambda f: (f / INDEX).write_text("{}"), NO_MAP),
    "a map of numbers": (lambda f: (f / INDEX).write_text('{"weight_map": {"a": 1}}'), NO_MAP),
    "a lost shard": (
        lambda f: (f / INDEX).write_text('{"weight_map": {"a": "lost.safetensors"}}'),
        r"lost\.safetensors is missing or damaged",
    ),
    "half a record": (
        lambda f: (f / RECORD).write_text('{"form": "plain", "config": {}}'),
        f"{RECORD} is damaged: it lacks input_interface, vocab_size",
    ),
    "a missing tensor": (without("model.norm.weight"), "it lacks model.norm.weight"),
    "another width": (
        lambda f: edit(f / "config.json", intermediate_size=40),
        rf"mlp.gate_proj.weight is \[{MLP}, {WIDTH}\], by the configuration \[40, {WIDTH}\]",
    ),
    "another vocabulary": (
        lambda f: edit(f / "config.json", vocab_size=V + 1),
        rf"is \[{V}, {WIDTH}\], by the configuration \[{V + 1}, {WIDTH}\]",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_imports_name_what_is_wrong(folder, tmp_path, fault):
    change, message = FAULTS[fault]
    change(folder)
    with pytest.raises(UserError, match=message):
        import_folder(folder, tmp_path / "in")
    assert not (tmp_path / "in").exists()


def test_a_shape_is_known_without_reading(sound):
    assert FolderTensors(sound).shape("model.embed_tokens.weight") == (V, WIDTH)


@pytest.mark.parametrize(
    "change, message",
    [
        (without("model.norm.weight"), "lacks weights of its model: model.norm.weight"),
        (FAULTS["another width"][0], "could not be loaded"),
        (FAULTS["no JSON"][0], r"config\.json is damaged"),
        (FAULTS["weights cut off"][0], "could not be loaded"),
        (lambda f: edit(f / "config.json", model_type="unheard-of"), "could not be loaded"),
    ],
)
def test_generation_from_a_damaged_folder(folder, capsys, change, message):
    """transformers would fill what is missing with random numbers."""
    change(folder)
    with pytest.raises(UserError, match=message):
        load_model(folder)
    assert generate(["--load", str(folder), "--prompt", "1"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_another_tokenizer_than_the_exported_models(folder, tmp_path):
    """An export records the fingerprint of the one that it was trained with."""
    words = {f"w{i}": i for i in range(V)}
    home = tmp_path / "tokenizer"
    home.mkdir()
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(home / "tokenizer.json"))
    ours = run_tokenizer({"tokenizer_model": str(home)}).fingerprint
    for fingerprint in (ours, "another"):
        (folder / RECORD).write_text(json.dumps({"tokenizer_fingerprint": fingerprint}))
        if fingerprint == ours:
            assert load_model(folder, tokenizer_model=str(home)).tokenizer.fingerprint == ours
        else:
            with pytest.raises(UserError, match="not the tokenizer that the model was trained"):
                load_model(folder, tokenizer_model=str(home))


def test_any_of_several_ids_ends_a_text(sound, capsys, monkeypatch):
    """The model says 5, 7, 5, 7, ...; 3 and 7 end a text."""
    loaded = load_model(sound)
    assert loaded.eod == [3, 7]
    with torch.no_grad():
        for parameter in loaded.model.model.layers.parameters():
            parameter.zero_()
        loaded.model.model.embed_tokens.weight.copy_(torch.eye(V, WIDTH))
        loaded.model.lm_head.weight.zero_()
        loaded.model.lm_head.weight[7, 5] = loaded.model.lm_head.weight[5, 7] = 1.0
    monkeypatch.setattr("fixedcode_megatron.interop.models.load_model", lambda *_, **__: loaded)
    flags = "--load x --temperature 0 --max-new-tokens 4 --prompt 7".split()
    assert generate(flags) == 0
    assert capsys.readouterr().out.split() == ["5"]
    assert generate([*flags, "--ignore-eod"]) == 0
    assert capsys.readouterr().out.split() == ["5", "7", "5", "7"]


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--device", "warp"], "--device warp: torch cannot use it"),
        (["--ckpt-step", "5"], "--ckpt-step 5: --load"),
    ],
)
def test_generation_refuses_flags_that_cannot_be(sound, capsys, flags, message):
    assert generate(["--load", str(sound), "--prompt", "1", *flags]) == 1
    assert message in capsys.readouterr().err


def test_imports_refuse_the_flags_of_exports(sound, tmp_path, capsys):
    argv = f"--from hf --to megatron --load {sound} --save {tmp_path / 'in'}".split()
    assert convert([*argv, "--form", "plain", "--ckpt-step", "3"]) == 1
    assert "--from hf: leave out --ckpt-step, --form" in capsys.readouterr().err
    assert not (tmp_path / "in").exists()


@pytest.mark.parametrize("program, name", [(convert, "transformers"), (generate, "safetensors")])
def test_without_transformers_it_is_said_how_to_install_it(monkeypatch, capsys, program, name):
    monkeypatch.setitem(sys.modules, name, None)
    flags = ["--load", "x"]
    flags += "--from megatron --to hf --save y".split() if program is convert else []
    assert program(flags) == 1
    assert f"{name} is not installed: pip install transformers" in capsys.readouterr().err
