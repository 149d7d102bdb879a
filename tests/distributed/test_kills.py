"""kill -9 of one of two ranks at random moments, again and again, with a save every iteration."""

from __future__ import annotations

import json
import random
import time

import pytest

from fixedcode_megatron.training.checkpoint_files import TRACKER
from tests.distributed import cases, checkpoint_cases
from tests.distributed.ranks import RankError, run_ranks

pytestmark = pytest.mark.distributed

FLAGS = (
    "--eval-interval 1000 --eval-iters 0 --lr-warmup-iters 0 --use-distributed-optimizer "
    "--hidden-dropout 0.1 --save-interval 1 --keep-last-checkpoints 2"
)


@pytest.mark.parametrize(
    "kills", [5, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_kills_at_random_moments_cost_nothing_but_time(train, base_flags, tmp_path, kills):
    """Every restart finds a whole checkpoint; all losses are those of an undisturbed run.

    Odd launches save in the background. A launch is killed in its second iteration, or in the half
    that comes after it, so that each of its phases is hit in turn.
    """
    dice = random.Random(kills)
    length = 2 * kills + 2
    flags = f"{FLAGS} --train-iters {length}"
    checkpoints = tmp_path / "ck"
    argv = [*base_flags, *flags.split(), "--run-dir", str(tmp_path / "run")]
    argv += ["--save", str(checkpoints), "--load", str(checkpoints)]
    died, launches = 0, 0
    while died < kills:
        launches += 1
        assert launches <= 2 * kills, "the launches come to their end before they are killed"
        died += killed(argv, dice, tmp_path / f"launch{launches}", background=launches % 2 == 1)
    assert run_ranks(2, cases.run_main, argv, output=tmp_path / "last") == [0, 0]
    assert (checkpoints / TRACKER).read_text() == f"{length}\n"
    straight = train(f"{flags} --save {tmp_path / 'straight'}", ranks=2)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
    assert [row["iteration"] for row in rows] == list(range(1, length + 1))
    for name in ("lm loss", "grad norm", "learning rate", "data checksum"):
        assert [row[name] for row in rows] == straight.column(name)
    for log in tmp_path.glob("*/rank0.log"):
        assert "damaged" not in log.read_text()


def killed(argv, dice, folder, *, background):
    """Whether the launch was killed before it came to its end; checks what the survivor does."""
    how = "--async-save" if background else "--no-async-save"
    victim, seed = dice.randrange(2), dice.randrange(2**32)
    started = time.monotonic()
    try:
        function = checkpoint_cases.run_killed_at_random
        statuses = run_ranks(2, function, [*argv, how], seed=seed, victim=victim, output=folder)
    except RankError as error:
        told = str(error)
        assert f"rank {victim}: died" in told
        assert "no answer in time" not in told  # the other one has ended by itself ...
        assert time.monotonic() - started < 60
        survivor = (folder / f"rank{1 - victim}.log").read_text()
        assert "lost contact with another rank in iteration" in survivor  # ... and said why
        return True
    assert statuses == [0, 0]
    return False
