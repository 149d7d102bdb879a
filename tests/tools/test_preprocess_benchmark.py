"""benchmarks/preprocess.py runs, and all contenders count the same tokens."""

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
            row["tokens"]
            for row in rows
            if row["tokenizer"] == tokenizer
            and row["contender"] not in ("threads", "files")  # without EOD
        }
        assert len(counts) == 1 and int(counts.pop()) > 100_000
    assert "ours / pool" in done.stdout
