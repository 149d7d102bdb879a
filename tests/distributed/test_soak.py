"""Long runs hold no more at their end than at their beginning."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.distributed import soak_cases as cases
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    "iterations, bound", [(200, 20_000), pytest.param(2_000, 1_000, marks=pytest.mark.slow)]
)
def test_nothing_grows(base_flags, tmp_path, iterations, bound):
    """Least-squares slope of the resident set over the second half, in bytes an iteration.

    The first half is left out, in which allocators, caches and thread pools fill. A checkpoint in
    the background and an evaluation need memory for a while, at one place in each window between
    checkpoints: what counts is the least that each window comes down to.
    """
    every = iterations // 20
    flags = (
        f"--num-layers 1 --global-batch-size 4 --train-iters {iterations} --eval-interval {every} "
        f"--eval-iters 1 --log-interval 10 --save {tmp_path / 'ck'} --save-interval {every} "
        f"--async-save --keep-last-checkpoints 2 --use-distributed-optimizer --run-dir {tmp_path} "
        f"--tensorboard-dir {tmp_path / 'tb'}"
    )
    results = run_ranks(
        2, cases.watched, [*base_flags, *flags.split()], output=tmp_path, timeout=1200
    )
    (tmp_path / "soak.json").write_text(json.dumps(results))
    for rank, (status, samples) in enumerate(results):
        assert status == 0
        late = {
            name: np.array(values).reshape(20, every)[10:].min(axis=1)
            for name, values in samples.items()
        }
        slope = np.polyfit(every * np.arange(10), late["resident"], 1)[0]
        print(f"rank {rank}: {slope:,.0f} bytes an iteration; {late}")
        assert slope < bound, late["resident"]
        for name in ("files", "threads", "python threads", "children"):
            assert late[name][-5:].max() <= late[name][:5].max(), (name, late[name])
