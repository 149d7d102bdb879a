"""tools/preprocess_data.py starts and ends well in places that its workers do not expect."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixedcode_megatron.data.indexed import IndexedDatasetReader

TOOL = Path(__file__).parents[2] / "tools" / "preprocess_data.py"


def run(tmp_path, flags="", before="", after=""):
    """Run the tool on two documents by way of a shell; seconds beside what it answered."""
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"text": "hi"}\n{"text": "there"}\n')
    command = f"{before} {sys.executable} {TOOL} --input {lines} --output-prefix {tmp_path}/o "
    command += f"--tokenizer-type ByteLevelTokenizer --append-eod --workers 2 {flags} {after}"
    begin = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    return done, time.monotonic() - begin


def is_whole(tmp_path):
    return len(IndexedDatasetReader(tmp_path / "o_text_document")) == 2


@pytest.mark.parametrize("flags, status", [("", 0), ("--input nothing.jsonl", 1)])
def test_sigterm_is_ignored_where_it_was_started(tmp_path, flags, status):
    """The workers are ended by SIGTERM; waiting for one that ignores it took 20 seconds."""
    done, seconds = run(tmp_path, flags, before="trap '' TERM;")
    assert done.returncode == status and seconds < 15
    assert "Traceback" not in done.stderr


def test_more_workers_than_documents(tmp_path):
    """Most are forked when the work is done already."""
    done, seconds = run(tmp_path, "--workers 60")
    assert done.returncode == 0 and seconds < 15 and is_whole(tmp_path)
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr


def test_files_in_the_current_folder_are_no_modules(tmp_path):
    for name in ("numpy", "socket", "gigatoken"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')\n")
    done, _ = run(tmp_path)
    assert done.returncode == 0 and is_whole(tmp_path), done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(tmp_path, closed):
    done, _ = run(tmp_path, after=closed)
    assert done.returncode == 0 and is_whole(tmp_path), done.stderr


def test_no_descriptors_left(tmp_path):
    """The interpreter that boots ahead cannot; the way out is a line, and the help is there."""
    done, _ = run(tmp_path, before="ulimit -n 6;")
    assert done.returncode == 1 and done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "--workers 2: cannot be started" in done.stderr and "ulimit -n" in done.stderr


def test_nothing_stays_where_no_worker_is_wanted(tmp_path):
    done, _ = run(tmp_path, "--workers 0", before="PYTHONWARNINGS=error::ResourceWarning")
    assert done.returncode == 0 and is_whole(tmp_path)
    assert "ResourceWarning" not in done.stderr, done.stderr
