"""The file of a run's figures when it cannot be written for a while."""

from __future__ import annotations

import json
import logging
import resource
import signal

import pytest

from fixedcode_megatron.training.metrics_file import METRICS_FILE, MetricsFile


@pytest.fixture
def size_limit():
    """Sets the largest size that this process may make a file: writing past it fails (EFBIG)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_rows_wait_until_there_is_room(tmp_path, size_limit, caplog):
    file = MetricsFile(tmp_path, None)
    path = tmp_path / METRICS_FILE
    file.write({"iteration": 1})
    with caplog.at_level(logging.WARNING):
        size_limit(25)  # the second row, too, has 17 bytes: half of it fits
        for iteration in (2, 3):
            file.write({"iteration": iteration})
    assert path.stat().st_size == 25
    [warning] = caplog.messages
    assert str(path) in warning and "File too large" in warning
    size_limit(10_000)
    file.write({"iteration": 4, "loss": float("nan")})
    file.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert rows[3]["loss"] is None
    assert len(caplog.messages) == 1


def test_what_never_was_written_is_told(tmp_path, size_limit, caplog):
    file = MetricsFile(tmp_path, None)
    size_limit(0)
    file.write({"iteration": 7})
    file.close()
    assert '{"iteration": 7}' in caplog.messages[-1]
