"""Exported models compute what Megatron computes, and come back bit for bit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from fixedcode_megatron.codes import TokenCode
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.interop.generate_command import main as generate
from fixedcode_megatron.interop.hf_export import export
from fixedcode_megatron.interop.source import open_checkpoint
from tests.distributed import export_cases
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

V, WIDTH, LENGTH = 500, 36, 24  # 9 bits, tiled four times; the head is padded to 512 rows
LLAMA = "--swiglu --normalization RMSNorm --disable-bias-linear --num-query-groups 2"
GELU = "--normalization LayerNorm"
CASES = {
    "learned": f"{LLAMA} --input-interface learned",
    "binary": f"{LLAMA} --input-interface binary --code-shift 5 --fold-first-layer",
    "gf2": f"{LLAMA} --input-interface gf2 --code-scale 2 --code-offset -1 --add-qkv-bias",
    "random": f"{LLAMA} --input-interface random --code-scale 0.3 --code-lift interleave",
    "lowdim": f"{LLAMA} --input-interface lowdim --kv-channels 12",
    "half rotary": f"{LLAMA} --input-interface gf2 --rotary-base 500000 --rotary-percent 0.5 "
    "--kv-channels 16 --hidden-size 64 --code-allow-partial-tile",
    "paper a": f"{GELU} --input-interface binary --rotary-percent 0.5 --kv-channels 16 "
    "--hidden-size 64 --code-allow-partial-tile",
    "groups": f"{GELU} --input-interface gf2 --num-query-groups 2 --hidden-size 72",
    "no biases": f"{GELU} --input-interface learned --disable-bias-linear --hidden-size 72",
}
FORMS = ("plain", "table-free")
ARCHITECTURES = {
    "half rotary": "Phi3ForCausalLM",
    "paper a": "GPTNeoXForCausalLM",
    "groups": "Starcoder2ForCausalLM",
    "no biases": "GPTNeoXForCausalLM",
}
BF16 = {
    "bf16": f"{LLAMA} --input-interface gf2 --code-scale 0.7 --bf16",
}
OWN = {
    "unusual": f"{GELU} --input-interface binary --squared-relu --qk-layernorm "
    "--apply-layernorm-1p --hidden-size 72",
    "no positions": f"{LLAMA} --input-interface binary --position-embedding-type none",
}
EVERY = CASES | BF16 | OWN


def flags(text, folder):
    common = (
        f"--num-layers 2 --hidden-size {WIDTH * 2} --num-attention-heads 4 --ffn-hidden-size 40 "
        f"--seq-length {LENGTH} --vocab-size {V} --micro-batch-size 1 --train-iters 1 --lr 1e-3 "
        "--hidden-dropout 0 --attention-dropout 0 --no-save-optim --no-save-rng --data-path unread "
        f"--make-vocab-size-divisible-by 128 --save {folder}"
    )
    return [*common.split(), *text.split()]


@pytest.fixture(scope="module", autouse=True)
def _modules_cache(tmp_path_factory):
    """Modelling files are copied here before they are imported, not into the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        cache = str(tmp_path_factory.mktemp("modules"))
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", cache)
        patch.syspath_prepend(cache)
        yield


@pytest.fixture(scope="module")
def ids():
    return torch.randint(0, V, (2, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def saved(tmp_path_factory, ids):
    """Folder of the checkpoint, and our logits, of each case."""
    root = tmp_path_factory.mktemp("saved")
    folders = {name: root / name.replace(" ", "-") for name in EVERY}
    argv = {name: flags(text, folders[name]) for name, text in EVERY.items()}
    [logits] = run_ranks(1, export_cases.save_random, argv, ids, timeout=400)
    return {name: (folders[name], logits[name]) for name in folders}


def loaded(folder):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], (kind, info[kind])
    return model.eval()


def assert_equal_weights(path, other):
    """The weights of two checkpoints, the rows of Megatron's padding left out."""
    one, two = open_checkpoint(path).weights, open_checkpoint(other).weights
    assert one.keys() == two.keys()
    for key in one.keys():  # noqa: SIM118
        a, b = one.read(key), two.read(key)
        if key in ("output_layer.weight", "embedding.word_embeddings.weight"):
            a, b = a[:V], b[:V]
        assert torch.equal(a, b), key


@pytest.fixture(scope="module")
def exported(saved, tmp_path_factory):
    """The folder of each case's export in each form that it has."""
    root = tmp_path_factory.mktemp("exported")
    folders = {(name, form): root / f"{name}-{form}" for name in CASES | BF16 for form in FORMS}
    folders |= {(name, "table-free"): root / name for name in OWN}
    for (name, form), target in folders.items():
        export(saved[name][0], target, form, max_shard_bytes=20_000)
    return folders


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_both_forms_compute_our_logits(saved, exported, ids, name):
    """Case 49: with half of each head rotated on another base and grouped queries, too. Case 50: no
    weight is missing or left over, and no head is tied."""
    folder, expected = saved[name]
    assert expected.std() > 0.1
    inputs = {}
    for form in FORMS:
        model = loaded(exported[name, form])
        assert model.dtype == torch.float32
        assert (model(ids).logits - expected).abs().max() < 1e-5, form
        every = torch.arange(V)[None]
        layer = model.get_input_embeddings()
        inputs[form] = layer(every) if form == "plain" else layer(every, torch.float32)
    assert torch.equal(inputs["plain"], inputs["table-free"])
    code = open_checkpoint(folder).common["token_code"]
    if code is not None:
        table = TokenCode.from_json(code).table(inputs["plain"].shape[-1])
        assert torch.equal(inputs["plain"][0], table)
    config = json.loads((exported[name, "plain"] / "config.json").read_text())
    assert config["architectures"] == [ARCHITECTURES.get(name, "LlamaForCausalLM")]
    assert config["tie_word_embeddings"] is False


@pytest.mark.parametrize("name", OWN)
@torch.no_grad()
def test_what_no_stock_architecture_has_is_table_free(saved, exported, ids, tmp_path, name):
    folder, expected = saved[name]
    with pytest.raises(UserError, match="--form table-free"):
        export(folder, tmp_path / "plain", "plain")
    assert not list(tmp_path.iterdir())
    model = loaded(exported[name, "table-free"])
    assert (model(ids).logits - expected).abs().max() < 1e-5


def test_exports_come_back_bit_for_bit(saved, exported, tmp_path):
    back = {key: tmp_path / f"{target.name}" for key, target in exported.items()}
    run_ranks(1, export_cases.import_all, {str(exported[k]): str(back[k]) for k in back})
    for (name, _), path in back.items():
        assert_equal_weights(saved[name][0], path)


@torch.no_grad()
def test_checkpoints_of_tp_2_and_pp_2(ids, tmp_path):
    """Each rank of four holds a quarter; the export is that of one rank that has loaded all."""
    model = f"{LLAMA} --input-interface learned --add-qkv-bias --hidden-size 72 --num-layers 4"
    split = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    folder = tmp_path / "saved"
    run_ranks(4, export_cases.save_random, {"": flags(f"{model} {split}", folder)}, None)
    whole = flags(f"{model} --load {folder} --finetune", tmp_path / "unused")
    [expected] = run_ranks(1, export_cases.load_and_run, whole, ids)
    assert expected.std() > 0.1
    for form in FORMS:
        export(folder, tmp_path / form, form)
        assert (loaded(tmp_path / form)(ids).logits - expected).abs().max() < 1e-5, form


def test_greedy_tokens_offline_in_an_empty_home(saved, exported, tmp_path, capsys):
    """transformers alone, without this package, continues a prompt as tools/generate.py does."""
    prompt, count = "7 31 401", 12
    cases = [("gf2", form) for form in FORMS] + [("paper a", form) for form in FORMS]
    program = str(Path(__file__).with_name("offline_greedy.py"))
    finished = subprocess.run(
        [sys.executable, "-I", program, str(count), prompt, *(str(exported[c]) for c in cases)],
        env={"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout.splitlines()[-1])
    for (name, form), tokens in zip(cases, found, strict=True):
        for source in (saved[name][0], exported[name, form]):
            options = f"--temperature 0 --max-new-tokens {count} --prompt".split()
            assert generate(["--load", str(source), *options, prompt]) == 0
            assert list(map(int, capsys.readouterr().out.split())) == tokens, (name, form)
    assert len({tuple(tokens) for tokens in found}) == 2


@torch.no_grad()
def test_bf16_weights_stay_bf16(saved, exported, ids):
    """The codes are rounded once, in the table as in the computed input."""
    code = TokenCode.from_json(open_checkpoint(saved["bf16"][0]).common["token_code"])
    table = code.table(72, torch.bfloat16)
    for form in FORMS:
        model = loaded(exported["bf16", form])
        assert model.dtype == torch.bfloat16
        layer, every = model.get_input_embeddings(), torch.arange(V)
        found = layer(every) if form == "plain" else layer(every, torch.bfloat16)
        assert torch.equal(found, table)
        expected = saved["bf16"][1].float()
        assert (model(ids).logits.float() - expected).abs().mean() < 0.02 * expected.std()


@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_a_llama_from_elsewhere_comes_in(ids, tmp_path, tied):
    """Written by transformers, loaded here by two tensor-parallel ranks."""
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=72,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        tie_word_embeddings=tied,
    )
    torch.manual_seed(3)
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter += torch.randn(parameter.shape) * 0.1
    model.save_pretrained(tmp_path / "hf")
    folders = {str(tmp_path / "hf"): str(tmp_path / "in")}
    run_ranks(1, export_cases.import_all, folders)
    tie = "--no-untie-embeddings-and-output-weights" if tied else ""
    argv = flags(
        f"{LLAMA} --input-interface learned --rotary-base 500000 --norm-epsilon 1e-6 {tie} "
        f"--tensor-model-parallel-size 2 --load {tmp_path / 'in'} --finetune",
        tmp_path / "unused",
    )
    halves = run_ranks(2, export_cases.load_and_run, argv, ids)
    ours = torch.cat(halves, dim=-1)[..., :V]
    assert (model(ids).logits - ours).abs().max() < 1e-5
    if tied:
        export(tmp_path / "in", tmp_path / "out", "plain")
        assert (loaded(tmp_path / "out")(ids).logits - ours).abs().max() < 1e-5
        with pytest.raises(UserError, match="use --form plain"):
            export(tmp_path / "in", tmp_path / "own", "table-free")


def test_the_model_card_and_what_else_lies_in_the_folder(saved, tmp_path):
    """9 columns of the low-dimensional table are trained, not the width of it."""
    folder = saved["lowdim"][0]
    rows = [("validation", 0, 2.5, None), ("validation", 5, 1.0, 2.72), ("train", 0, 3.0, 20.0)]
    names = ("kind", "iteration", "lm loss", "lm loss PPL")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    cards = {}
    for form in FORMS:
        export(folder, tmp_path / form, form)
        cards[form] = (tmp_path / form / "README.md").read_text()
        assert str(folder) not in cards[form]
        for path in (tmp_path / form).glob("*.json"):
            assert str(folder.parent) not in path.read_text(), path
    found = {path.name for path in (tmp_path / "table-free").iterdir()}
    assert found == {
        "config.json",
        "fixedcode_megatron.json",
        "generation_config.json",
        "model.safetensors",
        "modeling_fixedcode.py",
        "README.md",
    }
    # per layer: QKV 72 x (4 + 2 * 2) * 12, its output 48 x 72, the MLP 3 x 72 x 40, two norms
    layers = 2 * (72 * 96 + 48 * 72 + 3 * 72 * 40 + 2 * 72)
    total = layers + 72 + V * 72 + V * 9
    for card in cards.values():
        assert f"| trained parameters | {total:,} |" in card
        assert "| validation lm loss | 2.5 |" in card
        assert "| validation lm loss PPL | not finite |" in card
        assert "| training data | unread |" in card


def test_both_forms_have_the_same_trained_parameters(exported):
    """Neither tables of codes nor the zeros in place of absent biases were trained."""
    counts = {
        key: re.search(r"trained parameters \| ([\d,]+) ", (folder / "README.md").read_text())[1]
        for key, folder in exported.items()
    }
    for name in CASES:
        assert counts[name, "plain"] == counts[name, "table-free"], name
    # per layer: QKV 3 x 72 x 72, its output 72 x 72, the MLP 2 x 72 x 40, two norms of two vectors
    layers = 2 * (4 * 72 * 72 + 2 * 72 * 40 + 4 * 72)
    assert counts["no biases", "plain"] == f"{layers + 2 * 72 + 2 * V * 72:,}"


def test_a_full_disk_leaves_nothing_behind(saved, exported, tmp_path):
    """In either direction, and says so in a line."""
    save = tmp_path / "folder"
    out = f"--from megatron --to hf --load {saved['gf2'][0]} --save {save}".split()
    back = f"--from hf --to megatron --load {exported['gf2', 'plain']} --save {save}".split()
    case = export_cases.convert_without_room
    [statuses] = run_ranks(1, case, [out, back], output=tmp_path / "logs")
    assert statuses == [1, 1]
    log = (tmp_path / "logs" / "rank0.log").read_text()
    said = [line for line in log.splitlines() if line.startswith("error: ")]
    assert len(said) == 2 and all(" could not be written: " in line for line in said), log
    assert "Traceback" not in log
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


@pytest.mark.parametrize("name", [".metadata", "common.pt", "__0_0.distcp"])
def test_damaged_checkpoints_are_named(saved, tmp_path, name):
    """Of the right size, but zeros: what lost blocks of a disk leave."""
    [sound] = saved["gf2"][0].glob("iter_*")
    folder = shutil.copytree(sound, tmp_path / "damaged")
    if not (folder / name).exists():
        pytest.skip("newer megatron-core writes no common.pt")
    (folder / name).write_bytes(bytes((folder / name).stat().st_size))
    with pytest.raises(UserError, match=re.escape(str(folder))):
        export(folder, tmp_path / "out", "plain")
    assert not (tmp_path / "out").exists()


def test_what_a_checkpoint_says_of_itself(saved):
    """CPUs fuse no biases; a checkpoint that is named itself is of one iteration."""
    folder = saved["paper a"][0]
    assert open_checkpoint(folder).common["bias_activation_fusion"] is False
    [itself] = folder.glob("iter_*")
    assert open_checkpoint(itself, 0).path == itself
    with pytest.raises(UserError, match=r"--ckpt-step 7: --load .* is of iteration 0"):
        open_checkpoint(itself, 7)
