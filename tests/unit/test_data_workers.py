"""The pool of worker processes when workers die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixedcode_megatron.data.workers import WorkerDied, WorkerPool


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
