"""A user's mistakes end at once, with one clear message, status 2 and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.distributed


def message(run):
    return (run.folder / "rank0.log").read_text()


@pytest.mark.parametrize(
    "flags, words",
    [
        ("--hidden-size 80", ["--hidden-size 80", "code width 9", "--code-bits 10, 16, 20"]),
        ("--vocab-size 480", ["480", "499"]),
        ("--data-path {prefix}.bin", ["{prefix}.bin", "without .bin"]),
        ("--data-path /no/such/prefix", ["/no/such/prefix"]),
        ("--hiden-size 72", ["--hiden-size", "did you mean --hidden-size?"]),
        ("--input-interface onehot", ["onehot", "learned", "binary", "gf2"]),
        ("--no-untie-embeddings-and-output-weights", ["tie", "--input-interface learned"]),
        ("--global-batch-size 10 --micro-batch-size 4", ["10", "4", "8 or 12"]),
        ("--split 0,100,0", ["--split 0,100,0", "training"]),
        ("--tensor-model-parallel-size 4", ["1", "4"]),
        ("--fp8-format hybrid", ["--fp8-format", "transformer-engine"]),
    ],
)
def test_one_message_and_status_2(train, data_prefix, flags, words):
    run = train(flags.format(prefix=data_prefix))
    text = message(run)
    assert run.status == 2, text
    assert "Traceback" not in text
    assert "error: " in text
    for word in words:
        assert word.format(prefix=data_prefix).lower() in text.lower()
    assert not (run.folder / "metrics.jsonl").exists()


def test_all_problems_at_once(train):
    run = train("--hiden-size 72 --micro-batch-size three --tensor-model-parallel-size 4")
    assert run.status == 2
    for word in ("--hiden-size", "three", "--tensor-model-parallel-size"):
        assert word in message(run)


def test_a_preset_with_an_unknown_key(train, tmp_path):
    preset = tmp_path / "mine.yaml"
    preset.write_text("num_layers: 2\nhiden_size: 64\n")
    run = train(f"--config {preset}")
    assert run.status == 2
    for word in (str(preset), "hiden_size", "hidden_size"):
        assert word in message(run)


def test_six_ranks_at_tensor_parallel_four(base_flags):
    """As torchrun would start each of six ranks; seconds, as no rank waits for another."""
    environment = os.environ | dict(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="6", MASTER_ADDR="127.0.0.1", MASTER_PORT="1"
    )
    command = [sys.executable, "-m", "fixedcode_megatron.pretrain", *base_flags]
    ended = subprocess.run(
        [*command, "--tensor-model-parallel-size", "4"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    for word in ("6 ranks", "--tensor-model-parallel-size 4", "6 % 4 = 2"):
        assert word in ended.stderr
