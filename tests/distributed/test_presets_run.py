"""Every preset trains a few iterations, shrunk by flags alone."""

import json
import math

import pytest

from fixedcode_megatron.config.presets import PRESET_FOLDER
from tests.distributed.cases import run_main
from tests.distributed.conftest import VOCAB_SIZE
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed
SHRUNK = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --kv-channels 16 --num-query-groups 4 "
    "--ffn-hidden-size 128 --seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 "
    "--global-batch-size 2 --train-iters 3 --lr-warmup-iters 0 --log-interval 1 --eval-iters 0 "
    f"--vocab-size {VOCAB_SIZE} --code-bits 16 --tokenizer-type NullTokenizer --split 80,20,0"
)


def run_all(presets: list[str], data: str, folder: str) -> list[int]:
    found = []
    for preset in presets:
        flags = ["--config", preset, *SHRUNK.split(), "--data-path", data, "--run-dir"]
        # What needs Transformer Engine on a GPU is left out; tests/transformer_engine builds it.
        flags += [f"{folder}/{preset}", *(["--precision", "bf16"] if "fp8" in preset else [])]
        found.append(run_main(flags))
    return found


def test_every_preset_trains(data_prefix, tmp_path):
    presets = sorted({path.stem for path in PRESET_FOLDER.glob("*.yaml")} - {"sft"})
    statuses = run_ranks(1, run_all, presets, str(data_prefix), str(tmp_path))[0]
    assert statuses == [0] * len(presets)
    for preset in presets:
        lines = (tmp_path / preset / "metrics.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
        assert [row["iteration"] for row in rows] == [1, 2, 3], preset
        # Untrained: as uncertain as a uniform guess over the ids, up to the drawn weights.
        assert abs(rows[0]["lm loss"] - math.log(VOCAB_SIZE)) < 0.3, preset
