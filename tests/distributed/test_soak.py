"""Long runs hold no more at their end than at their beginning."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.distributed import soak_cases as cases
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    "iterations, bound", [(200, 60_000), pytest.param(2_000, 2_000, marks=pytest.mark.slow)]
)
def test_nothing_grows(base_flags, tmp_path, iterations, bound):
    """Least-squares slope of the resident set's highest mark, in bytes an iteration.

    Over the second half: in the first, allocators, caches and thread pools fill. Allocators also
    give back a few MB at a time, hence the highest mark. What a checkpoint in the background opens
    and starts is there for a while in each window between checkpoints: of these the least counts.
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
        mark = np.maximum.accumulate(samples["resident"])[iterations // 2 :]
        slope = np.polyfit(np.arange(len(mark)), mark, 1)[0]
        late = {
            name: np.array(values).reshape(20, every)[10:].min(axis=1)
            for name, values in samples.items()
        }
        print(f"rank {rank}: {slope:,.0f} bytes an iteration; {late}")
        assert slope < bound, late["resident"]
        for name in ("files", "threads", "python threads", "children"):
            assert late[name][-5:].max() <= late[name][:5].max(), (name, late[name])
