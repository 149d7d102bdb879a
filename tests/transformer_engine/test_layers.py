"""Every preset and precision builds from Transformer Engine's real layers, under the same names."""

import json
import os
import socket
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


def run_without_the_compiled_part(module, *arguments, ranks=1):
    """What a module of this folder prints last, from its JSON, on the first of so many ranks."""
    command = [sys.executable, "-W", "ignore", "-m", f"tests.transformer_engine.{module}", WHEEL]
    common = os.environ | {"OMP_NUM_THREADS": "1"}
    if ranks > 1:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            env=common | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        output = [process.communicate(timeout=500) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), output[0][1][-3000:]
    return json.loads(output[0][0].splitlines()[-1])


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
