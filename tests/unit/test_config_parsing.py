"""Flags, presets and defaults: who wins, and what is said about mistakes."""

import pytest

from fixedcode_megatron.config import ConfigError, parse_args

MINIMAL = [
    "--num-layers=2",
    "--hidden-size=64",
    "--num-attention-heads=4",
    "--train-iters=5",
    "--lr=1e-3",
    "--data-path=some/prefix",
    "--vocab-size=256",
]


def problems_of(*flags: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_args([*MINIMAL, *flags])
    return caught.value.problems


def test_flag_beats_preset_beats_default(tmp_path):
    preset = tmp_path / "p.yaml"
    preset.write_text("hidden_size: 128\nlr: 3e-4\nclip_grad: 5e-1\n")
    flags = [flag for flag in MINIMAL if not flag.startswith("--hidden-size")]
    cfg = parse_args([*flags, "--config", str(preset)])
    assert cfg.transformer.hidden_size == 128  # preset
    assert cfg.optimizer.lr == 1e-3  # flag
    assert cfg.optimizer.clip_grad == 0.5  # preset, although YAML takes 5e-1 for a string
    assert cfg.model.seq_length == 1024  # default


def test_one_name_feeds_every_section():
    cfg = parse_args([*MINIMAL, "--bf16", "--use-distributed-optimizer"])
    assert cfg.transformer.bf16 and cfg.optimizer.bf16
    assert cfg.ddp.use_distributed_optimizer and cfg.optimizer.use_distributed_optimizer


def test_all_problems_at_once():
    found = problems_of("--hiden-size", "8", "--micro-batch-size", "two", "--num-experts", "8")
    assert len(found) == 3
    assert "--hiden-size" in found[0] and "--hidden-size?" in found[0]
    assert "--micro-batch-size" in found[1] and "'two'" in found[1]
    assert "--num-experts" in found[2] and "dense" in found[2]


def test_printed_tree_reads_back(tmp_path):
    cfg = parse_args([*MINIMAL, "--swiglu", "--split", "1,0,0", "--window-size", "8", "0"])
    saved = tmp_path / "config.yaml"
    saved.write_text(cfg.to_yaml())
    assert parse_args(["--config", str(saved)]).to_dict() == cfg.to_dict()
