"""Every preset file against the options there are, and against its own parts."""

import pytest
import yaml

from fixedcode_megatron.config import parse_args
from fixedcode_megatron.config.options import parse
from fixedcode_megatron.config.presets import PRESET_FOLDER
from fixedcode_megatron.config.tree import ACTIONS, OPTIONS

PRESETS = sorted(PRESET_FOLDER.glob("*.yaml"))
H100 = [(gpus, suffix) for gpus in (8, 16, 64) for suffix in ("", "_fp8")]


def keys_of(path):
    """Keys as written: YAML itself lets a second `lr:` replace the first without a word."""
    node = yaml.compose(path.read_text())
    assert isinstance(node, yaml.MappingNode)
    return [key.value for key, _ in node.value]


@pytest.mark.parametrize("path", PRESETS, ids=lambda p: p.stem)
def test_a_preset_holds_known_settings_once_with_values_that_read(path):
    keys, values = keys_of(path), yaml.safe_load(path.read_text())
    assert len(keys) == len(set(keys))
    for name, value in values.items():
        if name == "base":
            assert (path.parent / value).is_file()
            continue
        assert name in OPTIONS and name not in ACTIONS, name
        parse(OPTIONS[name], value)


@pytest.mark.parametrize("path", PRESETS, ids=lambda p: p.stem)
def test_a_preset_says_what_it_is(path):
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize(("gpus", "suffix"), H100)
def test_cluster_presets_fit_their_clusters(gpus, suffix):
    name = f"paper_b_1.7b_{gpus}xh100{suffix}"
    cfg = parse_args(["--config", name, "--print-config"], world_size=gpus)
    base = parse_args(["--config", "paper_b_1.7b", "--print-config"], world_size=gpus)
    assert cfg.training.global_batch_size == base.training.global_batch_size
    assert cfg.transformer.bf16 and bool(cfg.transformer.fp8) == bool(suffix)


@pytest.mark.parametrize(("gpus", "suffix"), H100)
def test_cluster_presets_have_the_planners_layout(gpus, suffix):
    from fixedcode_megatron.planning.hardware import GPUS
    from fixedcode_megatron.planning.plan import make_plan
    from fixedcode_megatron.planning.search import search

    flags = ["--config", f"paper_b_1.7b_{gpus}xh100{suffix}", "--print-config"]
    cfg = parse_args(flags, world_size=gpus)
    assert make_plan(cfg, GPUS["h100"], gpus).time == search(cfg, GPUS["h100"], gpus)[0].time


def test_the_twins_differ_in_the_interface_alone():
    base = parse_args(["--config", "paper_b_1.7b"]).to_dict()
    for interface in ("learned", "gf2"):
        found = parse_args(["--config", f"paper_b_1.7b_{interface}"]).to_dict()
        assert {n for n in base if base[n] != found[n]} == {"input_interface"}
        assert found["input_interface"] == interface
