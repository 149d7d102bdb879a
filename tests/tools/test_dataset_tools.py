"""The dataset tools as programs: from any folder, without torch, megatron or triton, in time."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fixedcode_megatron.data.indexed import IndexedDatasetReader, IndexedDatasetWriter

TOOLS = Path(__file__).parents[2] / "tools"
NAMES = ("merge_datasets", "inspect_dataset", "split_dataset", "blend", "build_sample_index")
ALONE = """
import sys, runpy
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "megatron", "triton", "transformers", "matplotlib"):
            raise ImportError("not on this machine: " + name)
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def tool(folder, name, *flags):
    """Run a tool in `folder`, where none of the heavy libraries can be imported."""
    command = [sys.executable, "-c", ALONE, str(TOOLS / f"{name}.py"), *map(str, flags)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def write(prefix, documents, dtype=np.uint16):
    with IndexedDatasetWriter(prefix, dtype) as writer:
        for ids in documents:
            writer.add_document(ids)
        writer.commit()


@pytest.mark.parametrize("name", NAMES)
def test_help_needs_no_heavy_library(tmp_path, name):
    done = tool(tmp_path, name, "--help")
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_a_day_with_shards(tmp_path):
    """Merge, look, verify, hold out, blend: relative paths, files with spaces."""
    rng = np.random.default_rng(0)
    for number in (2, 10, 1):
        text = [[*f"document {number}.{i}".encode(), 256] for i in range(40)]
        write(tmp_path / "my shards" / f"p_{number}", text)
    (tmp_path / "my shards" / "README").write_text("stray")
    done = tool(tmp_path, "merge_datasets", "--input", "my shards", "--output-prefix", "all")
    assert done.returncode == 0, done.stderr
    assert "3 datasets, 120 documents" in done.stdout

    done = tool(
        tmp_path, "inspect_dataset", "all", "--documents", "0", "40", "-1", "--verify",
        "--tokenizer-type", "ByteLevelTokenizer", "--histogram", "text",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    order = [line for line in done.stdout.splitlines() if line.startswith("document ")]
    assert order == ["document 1.0", "document 2.0", "document 10.39"]
    assert "all 120 documents end with 256" in done.stdout

    done = tool(
        tmp_path, "split_dataset", "--input", "all", "--output-prefix", "o", "--valid", "0.2"
    )
    assert done.returncode == 0, done.stderr
    parts = [IndexedDatasetReader(tmp_path / name) for name in ("o_train", "o_valid")]
    assert sum(part.num_documents for part in parts) == 120

    write(tmp_path / "b", [rng.integers(0, 9, 500)])
    done = tool(
        tmp_path, "blend", "--train-data-path", "0.8", "o_train", "0.2", "b", "--seq-length", "16",
        "--tokens", "8K", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [part["samples"] for part in json.loads(done.stdout)] == [400, 100]


def test_mixed_types_end_with_one_line_and_no_file(tmp_path):
    write(tmp_path / "a", [[1]])
    write(tmp_path / "b", [[2]], np.int32)
    done = tool(tmp_path, "merge_datasets", "--input", "a", "b", "--output-prefix", "merged")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: a is uint16, b is int32: were both made with one tokenizer? If so, merge them "
        "with --dtype int32"
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.bin", "a.idx", "b.bin", "b.idx"]


def test_arguments_from_a_file_and_dry_run(tmp_path):
    for name in ("b", "a"):
        write(tmp_path / name, [[1]])
    (tmp_path / "list").write_text("--input\nb\na\n")
    done = tool(tmp_path, "merge_datasets", "@list", "--output-prefix", "m", "--dry-run")
    assert done.stdout.splitlines() == ["b", "a"]
    assert not (tmp_path / "m.bin").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_merge_that_is_stopped_leaves_no_final_name(tmp_path, number):
    size = 100_000_000
    write(tmp_path / "a", [[1]])
    with open(tmp_path / "a.bin", "wb") as stream:
        stream.truncate(2 * size)  # sparse
    index = bytearray((tmp_path / "a.idx").read_bytes())
    index[34:38] = size.to_bytes(4, "little")
    (tmp_path / "a.idx").write_bytes(index)
    command = [sys.executable, str(TOOLS / "merge_datasets.py"), "--input", "a"]
    command += ["--output-prefix", "m"]
    partial = tmp_path / "m.bin.partial"
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not (partial.exists() and partial.stat().st_size):
            time.sleep(0.005)
        assert process.poll() is None, process.stderr.read()
        process.send_signal(number)
        process.wait()
    names = {p.name for p in tmp_path.iterdir()}
    left = {"m.bin.partial"} if number == signal.SIGKILL else set()
    assert names - left == {"a.bin", "a.idx"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert os.stat(tmp_path / "m.bin").st_size == 2 * size
    assert not partial.exists()
