"""The file of a run's figures when it cannot be written for a while."""

from __future__ import annotations

import json
import logging
import resource
import signal
from contextlib import contextmanager

from fixedcode_megatron.training.metrics_file import METRICS_FILE, MetricsFile


@contextmanager
def files_up_to(size):
    """Let this process make no file larger than `size`: writing past it fails (EFBIG).

    Undone before the test returns, for pytest's own output may go to a file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_rows_wait_until_there_is_room(tmp_path, caplog):
    file = MetricsFile(tmp_path, None)
    path = tmp_path / METRICS_FILE
    file.write({"iteration": 1})
    # The second row, too, has 17 bytes: half of it fits.
    with caplog.at_level(logging.WARNING), files_up_to(25):
        for iteration in (2, 3):
            file.write({"iteration": iteration})
    assert path.stat().st_size == 25
    [warning] = caplog.messages
    assert str(path) in warning and "File too large" in warning
    file.write({"iteration": 4, "loss": float("nan")})
    file.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert rows[3]["loss"] is None
    assert len(caplog.messages) == 1


def test_what_never_was_written_is_told(tmp_path, caplog):
    file = MetricsFile(tmp_path, None)
    with files_up_to(0):
        file.write({"iteration": 7})
        file.close()
    assert '{"iteration": 7}' in caplog.messages[-1]
