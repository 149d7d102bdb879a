"""The snippet of docs/integrations.md for torchtitan trains in its loop."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixedcode_megatron.codes import TokenCode

ROOT = Path(__file__).resolve().parents[2]
TORCHTITAN = next(iter(sorted((ROOT / ".venv").glob("torchtitan-*"))), None)


@pytest.mark.skipif(
    TORCHTITAN is None, reason="torchtitan's wheel is not in .venv (`make test` fetches it)"
)
def test_torchtitan(tmp_path):
    code = (
        "import json, sys\nfrom tests.distributed.stock_loops import torchtitan\n"
        "found = torchtitan(sys.argv[1])\nfound['input'] = found['input'].tolist()\n"
        "print(json.dumps(found))"
    )
    rank = dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(TORCHTITAN)],
        cwd=tmp_path,
        env=os.environ | rank | {"PYTHONPATH": f"{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    first, second = found["losses"]
    # torchtitan draws the head so that logits have unit variance, which adds a half.
    assert abs(first - math.log(2048) - 0.5) < 0.2 and second < first
    assert all(found["changed"].values()) and found["changed"]
    assert not [name for name in found["changed"] if "tok_embeddings" in name]
    code_2048 = TokenCode.binary(2048, num_bits=16)
    assert found["input"] == code_2048.embed([[3, 2047, 0]], 256).tolist()
