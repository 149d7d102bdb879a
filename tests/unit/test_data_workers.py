"""The pool of worker processes when workers die."""

from __future__ import annotations

import os
import signal
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
