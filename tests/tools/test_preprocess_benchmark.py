"""benchmarks/preprocess.py runs, and all contenders count their tokens."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "preprocess.py"


@pytest.mark.slow
def test_small_run(tmp_path):
    flags = ["--size", "2", "--slow-size", "3", "--repeats", "1", "--csv", tmp_path / "x.csv"]
    done = subprocess.run([sys.executable, BENCHMARK, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "x.csv") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["contender"] for row in rows} == {
        "ours", "engine", "threads", "files", "pool", "encode_batch",
    }  # fmt: skip
    for tokenizer in ("gpt2-style", "smollm2-style"):
        counts = {
            row["contender"]: int(row["tokens"]) for row in rows if row["tokenizer"] == tokenizer
        }
        assert counts["ours"] == counts["pool"] == counts["encode_batch"] > 100_000
        alone = {name: counts[name] / counts["ours"] for name in ("engine", "threads", "files")}
        # The library's Unicode is newer, it splits at digits otherwise, and adds no end to a text.
        assert all(0.98 < ratio < 1.02 for ratio in alone.values()), alone
    assert "ours / pool" in done.stdout
