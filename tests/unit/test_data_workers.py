"""The pool of worker processes when workers die, or are spent."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from fixedcode_megatron.data import encoding, preprocess
from fixedcode_megatron.data.bpe import train_byte_level_bpe
from fixedcode_megatron.data.workers import WorkerDied, WorkerPool

TEXT = "hello world, hi there 12 foxes  3 jump. Over the lazy dog\n\n" * 4


def make_deadly():
    """A function that kills its process for 0, after a while, and for 1, at once."""

    def work(number: int) -> int:
        time.sleep({0: 1.0, 1: 0.0}.get(number, 0.05))
        if number < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    return work


@pytest.mark.timeout(30)
def test_two_workers_may_die(monkeypatch):
    """Calls to the dead one must not take the word about the other from who waits for it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # the workers find this module
    pool = WorkerPool(4)
    pool.start(make_deadly, ())
    with pytest.raises(WorkerDied, match="was killed by SIGKILL"):
        list(pool.map(range(12)))


class Tiring:
    """Answers with the number of its process, and is spent after two items."""

    def __init__(self) -> None:
        self.done = 0

    @property
    def is_spent(self) -> bool:
        return self.done >= 2

    def __call__(self, item: str) -> tuple[str, int]:
        self.done += 1
        if item == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return item, os.getpid()


@pytest.mark.timeout(60)
def test_another_process_takes_the_place_of_a_spent_one(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    pool = WorkerPool(2)
    pool.start(Tiring, ())
    answers = list(pool.map(map(str, range(31))))
    pool.close()
    assert [item for item, _ in answers] == [str(i) for i in range(31)]
    assert sorted(Counter(pid for _, pid in answers).values()) == [1, *[2] * 15]
    with pytest.raises(ProcessLookupError):
        os.kill(answers[-1][1], 0)


@pytest.mark.timeout(60)
def test_the_death_of_one_that_took_a_place_is_noticed(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    pool = WorkerPool(2)
    pool.start(Tiring, ())
    found = []
    with pytest.raises(WorkerDied, match="was killed by SIGKILL"):
        for item, _ in pool.map([*map(str, range(20)), "die", *map(str, range(20))]):
            found.append(item)
    assert found == [str(i) for i in range(20)]


class QuicklyFull(encoding.BlockEncoder):
    """Its engine is full after every item; notes the processes of the items."""

    def __init__(self, spec) -> None:
        super().__init__(spec)
        self._fast.engine.is_full = lambda: self._fast.engine._text_bytes > 0

    def __call__(self, payload):
        with Path(os.environ["NOTES"]).open("a") as notes:
            notes.write(f"{os.getpid()}\n")
        return super().__call__(payload)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("append_eod", [True, False])
def test_a_full_engine_is_given_up_with_its_process(tmp_path, monkeypatch, append_eod):
    """Unless that process had to load HF tokenizers: then the engine is built anew in it.

    For a piece with a letter of Unicode 17 it must, if there is no end-of-document id.
    """
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setattr(preprocess, "make_encoder", QuicklyFull)
    train_byte_level_bpe([TEXT], 290, tmp_path / "tokenizer.json", progress=False)
    inputs = [tmp_path / f"{i:02d}.jsonl" for i in range(12)]
    for i, path in enumerate(inputs):
        text = f"{i} {TEXT * 20} \u088f" if i == 3 else f"{i} {TEXT}"
        path.write_text(json.dumps({"text": text}) + "\n")

    def run(name: str, workers: int, engine: str) -> list[bytes]:
        prefix = tmp_path / name
        options = preprocess.PreprocessOptions(
            input=[str(path) for path in inputs],
            output_prefix=str(prefix),
            tokenizer_model=str(tmp_path / "tokenizer.json"),
            append_eod=append_eod,
            workers=workers,
            tokenizer_engine=engine,
            progress=False,
        )
        preprocess.preprocess(options)
        return [Path(f"{prefix}_text_document.{end}").read_bytes() for end in ("bin", "idx")]

    fast = run("fast", 2, "gigatoken")
    monkeypatch.undo()
    assert fast == run("slow", 0, "hf")
    processes = Counter((tmp_path / "notes").read_text().split())
    items = 1 + len(inputs)  # the sample first
    assert sum(processes.values()) == items
    assert len(processes) == items if append_eod else 4 <= len(processes) < items


def make_unforkable():
    """A template that the system does not let fork."""

    def fork() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    os.fork = fork
    return str


@pytest.mark.timeout(30)
def test_a_worker_that_cannot_be_started_is_told(monkeypatch, capfd):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    pool = WorkerPool(2)
    pool.start(make_unforkable, ())
    with pytest.raises(WorkerDied, match="ended with exit code 1: see its message above"):
        list(pool.map(range(3)))
    assert capfd.readouterr().err == (
        "a worker process cannot be started: Resource temporarily unavailable\n"
    )


BOOT = """
import threading
from fixedcode_megatron.data import interpreter
{}
interpreter.boot()
print(type(interpreter._booted[0][0]).__name__)
interpreter.end_unused()
{}
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd_open")
@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("", "", "_Fork"),
        ("e = threading.Event(); threading.Thread(target=e.wait).start()", "e.set()", "Popen"),
        ("del interpreter.os.pidfd_open", "", "Popen"),
    ],
)
def test_a_program_is_forked_only_while_it_has_one_thread(before, after, found):
    done = subprocess.run(
        [sys.executable, "-c", BOOT.format(before, after)],
        capture_output=True, text=True, timeout=60, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{found}\n", "")


KILLED = """
import os, signal
from fixedcode_megatron.data import interpreter
{}
from fixedcode_megatron.data.workers import WorkerDied, WorkerPool
from test_data_workers import Tiring
pool = WorkerPool(2)
pool.start(Tiring, ())
answers = pool.map(map(str, range(1000)))
next(answers)
os.kill(pool._template._process.pid, signal.SIGKILL)
try:
    list(answers)
except WorkerDied as error:
    print(error)
pool.close()
"""


@pytest.mark.parametrize("boot", ["", "interpreter.boot()"], ids=["fresh", "booted"])
def test_a_template_that_is_killed_is_named(boot):
    """Its workers go on, until one is spent and nobody forks another."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", KILLED.format(boot)],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )  # fmt: skip
    said = "a worker process was killed by SIGKILL (out of memory?): run again, "
    assert (done.stdout, done.stderr) == (f"{said}perhaps with fewer --workers\n", "")
    assert done.returncode == 0
