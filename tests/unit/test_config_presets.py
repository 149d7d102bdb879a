"""Presets: what they hold, how they build on each other, and that a printed tree is one."""

import pytest

from fixedcode_megatron.config import ConfigError, parse_args
from fixedcode_megatron.config.presets import PRESET_FOLDER
from fixedcode_megatron.config.sections import INPUT_INTERFACES

PRESETS = sorted({path.stem for path in PRESET_FOLDER.glob("*.yaml")} - {"sft"})  # no model


def trainable(cfg) -> dict[str, int]:
    """Parameters by hand: 4h^2 of attention, 2 or 3 MLP matrices, 2 norms a layer, a last one."""
    t, h = cfg.transformer, cfg.transformer.hidden_size
    norm = h if t.normalization == "RMSNorm" else 2 * h
    mlp = (3 if cfg.model.swiglu else 2) * h * t.ffn_hidden_size
    table = cfg.model.vocab_size * h
    layers = t.num_layers * (4 * h * h + mlp + 2 * norm) + norm
    assert not t.add_bias_linear and t.num_query_groups == t.num_attention_heads
    return {"fixed": layers + table, "learned": layers + 2 * table}


@pytest.mark.parametrize("interface", INPUT_INTERFACES)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_works_with_every_interface(preset, interface):
    flags = ["--config", preset, "--input-interface", interface]
    cfg = parse_args([*flags, *(["--print-config"] if "fp8" in preset else [])])  # FP8 needs a GPU
    assert cfg.input.input_interface == interface


def test_paper_b_has_the_published_counts():
    counts = trainable(parse_args(["--config", "paper_b_1.7b"]))
    assert counts == {"fixed": 1_711_376_384, "learned": 1_812_039_680}


def test_paper_a_has_the_published_share():
    counts = trainable(parse_args(["--config", "paper_a_537m"]))
    assert counts["learned"] - counts["fixed"] == 67_108_864
    assert round(100 * 67_108_864 / counts["learned"], 1) == 12.5
    assert round(counts["learned"] / 1e6) == 537


@pytest.mark.parametrize(("preset", "layers"), [("paper_a_16layers", 16), ("paper_a_9layers", 9)])
def test_ablations_differ_in_depth_alone(preset, layers):
    ours = parse_args(["--config", preset]).to_dict()
    full = parse_args(["--config", "paper_a_537m"]).to_dict()
    assert {name for name in ours if ours[name] != full[name]} == {"num_layers"}
    assert (ours["num_layers"], full["num_layers"]) == (layers, 32)


def test_token_budgets_of_the_papers():
    b = parse_args(["--config", "paper_b_1.7b"])
    a = parse_args(["--config", "paper_a_537m"])
    tokens = [
        cfg.training.train_iters * cfg.training.global_batch_size * cfg.model.seq_length
        for cfg in (a, b)
    ]
    assert tokens[0] == pytest.approx(17.093e9, rel=1e-4)
    assert tokens[1] == pytest.approx(100e9, rel=1e-4)


@pytest.mark.parametrize("preset", PRESETS)
def test_printed_tree_is_a_preset_with_the_same_values(preset, tmp_path):
    cfg = parse_args(["--config", preset, "--precision", "bf16"])
    saved = tmp_path / "config.yaml"
    saved.write_text(cfg.to_yaml())
    assert parse_args(["--config", str(saved)]).to_dict() == cfg.to_dict()


@pytest.mark.parametrize("preset", PRESETS)
def test_fine_tuning_goes_on_top_of_every_preset(preset, tmp_path):
    """Of a preset, or of the configuration that a run of it has left."""
    flags = ["--precision", "bf16"] if "fp8" in preset else []  # FP8 needs a GPU
    base = parse_args(["--config", preset, *flags])
    printed = tmp_path / "config.yaml"
    printed.write_text(base.to_yaml())
    for below in (preset, str(printed)):
        tune = ["--config", below, "--config", "sft", "--train-data-path", "x.jsonl"]
        cfg = parse_args([*tune, *flags])
        assert cfg.data.sft and cfg.data.data_path is None and cfg.data.prepare_data == "none"
        assert cfg.transformer.calculate_per_token_loss and cfg.optimizer.lr == 2e-5
        assert cfg.transformer.hidden_size == base.transformer.hidden_size


def test_unknown_keys_get_a_suggestion(tmp_path):
    preset = tmp_path / "p.yaml"
    preset.write_text("hiden_size: 8\nnorm_epsilon: 1e-5\nmtp_num_layers: 1\nseq_length: long\n")
    with pytest.raises(ConfigError) as caught:
        parse_args(["--config", str(preset)])
    found = [problem.removeprefix(f"{preset}: ") for problem in caught.value.problems]
    assert found[0] == "hiden_size: no such setting; did you mean hidden_size?"
    assert found[1] == "norm_epsilon: a flag only; write layernorm_epsilon"
    assert found[2] == "mtp_num_layers: multi-token prediction is not supported"
    assert found[3] == "seq_length: must be a whole number, found 'long'"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: b: c", "not valid YAML"),
        ("- 1\n- 2\n", "found list"),
        ("base: p.yaml\n", "`base` leads back to itself"),
        ("base: gone\n", "--config gone: no such file"),
    ],
)
def test_broken_presets(tmp_path, text, part):
    preset = tmp_path / "p.yaml"
    preset.write_text(text)
    with pytest.raises(ConfigError) as caught:
        parse_args(["--config", str(preset)])
    assert any(part in problem for problem in caught.value.problems)


def test_a_data_path_of_ones_own_is_never_written_to():
    preset = parse_args(["--config", "quickstart"])
    own = parse_args(["--config", "quickstart", "--data-path", "my/text_document"])
    asked = parse_args(
        ["--config", "quickstart", "--data-path", "my/a", "--prepare-data", "python-library"]
    )
    found = [cfg.data.prepare_data for cfg in (preset, own, asked)]
    assert found == ["python-library", "none", "python-library"]
