"""`--precision` expands to Megatron's flags."""

import pytest

from fixedcode_megatron.config import ConfigError, parse_args
from fixedcode_megatron.config.cli import read
from fixedcode_megatron.config.precision import RECIPES
from fixedcode_megatron.config.sections import ModelConfig

SAME_AS = {
    "fp32": "",
    "bf16": "--bf16",
    "fp8_delayed": "--bf16 --fp8-format hybrid --fp8-recipe delayed --fp8-amax-history-len 1024 "
    "--fp8-amax-compute-algo max",
    "fp8_current": "--bf16 --fp8-format hybrid --fp8-recipe tensorwise",
    "fp8_blockwise": "--bf16 --fp8-format e4m3 --fp8-recipe blockwise",
}


def values(*flags):
    cfg, problems = read(flags)
    assert not problems
    return cfg.to_dict() | {"precision": None}


@pytest.mark.parametrize("name", SAME_AS)
def test_each_recipe_equals_megatrons_flags(name):
    assert values("--precision", name) == values(*SAME_AS[name].split())


def test_every_recipe_is_a_choice():
    choices = ModelConfig.__dataclass_fields__["precision"].metadata["choices"]
    assert set(choices) == set(RECIPES) == set(SAME_AS)


def test_a_flag_goes_before_a_preset_in_either_words(tmp_path):
    assert not values("--config", "paper_b_1.7b", "--precision", "fp32")["bf16"]
    preset = tmp_path / "p.yaml"
    preset.write_text("precision: fp8_current\n")
    found = values("--config", str(preset), "--fp8-recipe", "delayed")
    assert (found["fp8"], found["fp8_recipe"]) == ("hybrid", "delayed")


@pytest.mark.parametrize(
    "flags, found",
    [
        ("--precision fp32 --bf16", "fp32: means --no-bf16, but --bf16 is"),
        ("--precision fp8_current --fp16", "fp8_current: means --no-fp16, but --fp16 is"),
        ("--precision bf16 --no-bf16", "bf16: means --bf16, but --no-bf16 is"),
        (
            "--precision bf16 --fp8-format e4m3",
            "bf16: means no --fp8-format, but --fp8-format e4m3",
        ),
    ],
)
def test_contradictions_are_reported(flags, found):
    with pytest.raises(ConfigError, match=rf"--precision {found}.* given, too; drop one"):
        parse_args(["--config", "quickstart", *flags.split()])


@pytest.mark.parametrize("name", SAME_AS)
def test_saved_configurations_load_again(name, tmp_path):
    flags = ["--config", "paper_b_1.7b", "--precision", name, "--print-config"]
    cfg = parse_args(flags)
    saved = tmp_path / "config.yaml"
    saved.write_text(cfg.to_yaml())
    assert parse_args(["--config", str(saved), "--print-config"]).to_dict() == cfg.to_dict()
