"""Every preset and precision builds from Transformer Engine's real layers, under the same names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHEEL = next(iter(sorted((ROOT / ".venv").glob("transformer-engine-*"))), None)
FP8 = {
    "bf16": [None, None],
    "fp32": [None, None],
    "fp8_delayed": ["hybrid", "delayed"],
    "fp8_current": ["hybrid", "tensorwise"],
    "fp8_blockwise": ["e4m3", "blockwise"],
}

pytestmark = pytest.mark.skipif(
    WHEEL is None, reason="transformer-engine's wheel is not in .venv (`make test` fetches it)"
)


def run_without_the_compiled_part(module, *arguments):
    """What a module of this folder prints last, from its JSON."""
    name = f"tests.transformer_engine.{module}"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", name, WHEEL, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def built():
    return run_without_the_compiled_part("build_presets")


def test_parameters_and_sharded_keys_are_those_of_the_local_layers(built):
    assert len(built) >= 20
    for name, found in built.items():
        assert found["te"]["uses_te"] and not found["local"]["uses_te"], name
        assert found["te"]["parameters"] == found["local"]["parameters"], name
        assert found["te"]["sharded"] == found["local"]["sharded"], name


def test_recipes_reach_the_layers(built):
    for name, found in built.items():
        assert found["te"]["fp8"] == FP8[name.split()[1]], name


def test_a_layer_has_the_names_that_checkpoints_hold(built):
    names = set(built["paper_b_1.7b fp8_current"]["te"]["parameters"])
    assert {n for n in names if n.startswith("decoder.layers.1.")} == {
        f"decoder.layers.1.{n}"
        for n in (
            "self_attention.linear_proj.weight",
            "self_attention.linear_qkv.weight",
            "self_attention.linear_qkv.layer_norm_weight",
            "mlp.linear_fc1.weight",
            "mlp.linear_fc1.layer_norm_weight",
            "mlp.linear_fc2.weight",
        )
    }
