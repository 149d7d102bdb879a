"""tools/preprocess_data.py interrupted at any moment: a clear end, and the same bytes after all."""

import contextlib
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from fixedcode_megatron.data.bpe import train_byte_level_bpe

TOOL = Path(__file__).parents[2] / "tools" / "preprocess_data.py"
FINAL = [f"o_{key}_document.{suffix}" for key in ("text", "title") for suffix in ("bin", "idx")]
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="needs Linux's /proc to find the workers"
)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Documents of three kinds, with bad lines, a tokenizer, and an uninterrupted run's files."""
    folder = tmp_path_factory.mktemp("resume")
    rng = random.Random(3)
    words = ["hello", "world", "there", "quick", "12", "  3", "é", "\n", "fox", "jumps", "over"]
    train_byte_level_bpe([" ".join(words) * 3], 280, folder / "tokenizer.json", progress=False)
    rows = [
        {"text": " ".join(rng.choices(words, k=rng.randint(0, 900))), "title": f"t{i}"}
        for i in range(3000)
    ]
    lines = [json.dumps(row) + "\n" for row in rows]
    for i in range(0, 2000, 97):
        lines[i] = '{"text": "no title"}\n'
    (folder / "in").mkdir()
    (folder / "in/a.jsonl").write_text("".join(lines[:1000]))
    (folder / "in/b.jsonl.gz").write_bytes(gzip.compress("".join(lines[1000:2000]).encode()))
    pa.parquet.write_table(
        pa.Table.from_pylist(rows[2000:]), folder / "in/c.parquet", row_group_size=100
    )
    run(folder, folder / "whole", "--workers", 0)
    return folder


def command(folder, out, *flags):
    head = [sys.executable, TOOL, "--tokenizer-model", folder, "--append-eod", "--json-keys"]
    head += ["text", "title", "--on-error", "skip", "--input", folder / "in"]
    head += ["--tokenizer-engine", "hf", "--output-prefix", out / "o"]
    return [*map(str, head), "--checkpoint-interval", "0.001", *map(str, flags)]


def run(folder, out, *flags):
    done = subprocess.run(command(folder, out, *flags), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def assert_same_output(folder, out):
    names = sorted(path.name for path in out.iterdir())
    assert names == sorted(path.name for path in (folder / "whole").iterdir())
    for name in [*FINAL, "o_rejected.jsonl"]:
        assert (out / name).read_bytes() == (folder / "whole" / name).read_bytes(), name


def children(process):
    listing = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in listing.split()]


@contextlib.contextmanager
def default_interrupts():
    """Children started inside have Ctrl-C's default effect."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt(folder, out, how, after):
    """Start, wait for `after` checkpoints, interrupt; returns exit status and messages."""
    # A test run in the background of a shell ignores Ctrl-C, and its children would as well.
    with default_interrupts():
        process = subprocess.Popen(
            command(folder, out, "--workers", 2), stderr=subprocess.PIPE, text=True
        )
    state, seen = out / "o.resume.partial", set()
    while len(seen) < after and process.poll() is None:
        with contextlib.suppress(FileNotFoundError):
            seen.add(state.stat().st_mtime_ns)
        time.sleep(0.001)
    if how == "worker":
        (template,) = children(process.pid)
        os.kill(children(template)[0], signal.SIGKILL)
    else:
        process.send_signal(how)
    _, message = process.communicate(timeout=60)
    return process.returncode, message


@pytest.mark.parametrize("after", [1, 4])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, "worker"])
def test_interrupted_and_continued(work, tmp_path, how, after):
    """Case 14."""
    status, message = interrupt(work, tmp_path, how, after)
    assert not any((tmp_path / name).exists() for name in FINAL)
    expected = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130, "worker": 1}
    assert status == expected[how]
    assert "Traceback" not in message
    if how == "worker":
        assert "SIGKILL" in message
    done = run(work, tmp_path, "--workers", 1)
    assert "continuing after" in done.stderr
    assert_same_output(work, tmp_path)


@pytest.mark.slow
def test_killed_at_fifty_moments(work, tmp_path):
    """The parent or a worker, up to three times before the job may end; each file is whole."""
    rng = random.Random(1)
    started = time.monotonic()
    run(work, tmp_path / "undisturbed", "--workers", 2)
    lasts = time.monotonic() - started
    kills = 0
    for number in range(50):
        out = tmp_path / str(number)
        for _ in range(rng.randint(1, 3)):
            if all((out / name).exists() for name in FINAL):
                break
            process = subprocess.Popen(command(work, out, "--workers", 2))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0.02, lasts))
            kills += process.returncode is None
            kill(process, worker=rng.random() < 0.3)
            for name in FINAL:
                if name.endswith("idx") and (out / name).exists():
                    assert (out / name).read_bytes() == (work / "whole" / name).read_bytes()
        if not all((out / name).exists() for name in FINAL):
            run(work, out, "--workers", 2)
        assert_same_output(work, out)
    assert kills >= 50


def run_until(folder, out, module, name):
    """A run that ends as if it were killed where it calls a function of ours."""
    code = (
        f"import os, sys; from fixedcode_megatron.data import {module} as m; "
        f"m.{name} = lambda *_: os._exit(9); "
        "from fixedcode_megatron.data.command_line import preprocess_main; "
        "sys.exit(preprocess_main(sys.argv[1:]))"
    )
    flags = command(folder, out, "--workers", 2)[2:]
    done = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True)
    assert done.returncode == 9, done.stderr


def test_killed_between_the_names_of_two_keys_and_soon_after_again(work, tmp_path):
    """The second run begins anew, for a part has its name; the third may still replace that."""
    for place in (("partial_pair", "fsync_folder"), ("output", "Output.add")):
        run_until(work, tmp_path, *place)
        assert [(tmp_path / name).exists() for name in FINAL] == [True, True, False, False]
    run(work, tmp_path, "--workers", 2)
    assert_same_output(work, tmp_path)


def test_killed_when_only_the_list_of_rejected_lines_has_its_name(work, tmp_path):
    """Twice; the next run takes the list back."""
    for _ in range(2):
        run_until(work, tmp_path, "resumable", "ResumableWriter.commit")
        assert (tmp_path / "o_rejected.jsonl").exists()
        assert not any((tmp_path / name).exists() for name in FINAL)
    done = run(work, tmp_path, "--workers", 2)
    assert "continuing after" in done.stderr
    assert_same_output(work, tmp_path)


def test_a_list_of_rejected_lines_that_is_gone(work, tmp_path):
    """Then the run begins anew: nothing else can say what was in it."""
    interrupt(work, tmp_path, signal.SIGKILL, 4)
    (tmp_path / "o_rejected.jsonl.partial").unlink()
    done = run(work, tmp_path, "--workers", 2)
    assert "continuing after" not in done.stderr
    assert_same_output(work, tmp_path)


def kill(process, *, worker):
    """Kill a process, or one of its workers, if there is one, and wait until it has ended."""
    if worker:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            forked = [one for template in children(process.pid) for one in children(template)]
            for one in forked[:1]:
                os.kill(one, signal.SIGKILL)
                process.wait(60)
    process.kill()
    process.wait()


def test_a_full_disk(work, tmp_path):
    """Case 14: On a small tmpfs: a clear end; with more room the same command finishes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2500k", "tmpfs", disk]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a tmpfs")
    try:
        flags = command(work, disk, "--workers", 2)
        done = subprocess.run(flags, capture_output=True, text=True)
        assert done.returncode == 1
        assert "No space left on device" in done.stderr and "Traceback" not in done.stderr
        assert not any((disk / name).exists() for name in FINAL)
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        done = run(work, disk, "--workers", 2)
        assert "continuing after" in done.stderr
        assert_same_output(work, disk)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_another_job_does_not_continue(work, tmp_path):
    interrupt(work, tmp_path, signal.SIGKILL, 2)
    other = command(work, tmp_path, "--workers", 0, "--max-tokens", 10, "--resume")
    done = subprocess.run(other, capture_output=True, text=True)
    assert done.returncode == 1 and "--no-resume" in done.stderr
    assert (tmp_path / "o.resume.partial").exists()  # nothing was lost by that
    done = run(work, tmp_path, "--workers", 2, "--no-resume")
    assert "continuing" not in done.stderr
    assert_same_output(work, tmp_path)


def test_resume_of_a_finished_run_does_nothing(work, tmp_path):
    run(work, tmp_path, "--workers", 0)
    before = (tmp_path / FINAL[0]).stat().st_mtime_ns
    run(work, tmp_path, "--workers", 0, "--resume")
    assert (tmp_path / FINAL[0]).stat().st_mtime_ns == before
    again = subprocess.run(command(work, tmp_path), capture_output=True, text=True)
    assert again.returncode == 1 and "--overwrite" in again.stderr
    assert_same_output(work, tmp_path)


def test_rejected_lines_are_listed(work):
    entries = [json.loads(x) for x in (work / "whole/o_rejected.jsonl").read_text().splitlines()]
    assert len(entries) == 21  # 0, 97, ... below 2000
    assert {entry["kind"] for entry in entries} == {"missing"}
    places = [(Path(entry["file"]).name, entry["line"]) for entry in entries]
    assert places[:2] == [("a.jsonl", 1), ("a.jsonl", 98)]
    assert places[11] == ("b.jsonl.gz", 1067 - 1000 + 1)
    summary = json.loads((work / "whole/o_text_document.json").read_text())
    assert summary["rejected"] == 21 and summary["skipped"] == {"missing": 21}
    assert summary["documents"] == 3000 - 21
