"""The results of docs/results.md follow from the committed losses; a cell of them reproduces."""

import csv
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fixedcode_megatron.comparison.grid import read_grid
from fixedcode_megatron.comparison.runs import plan_runs
from fixedcode_megatron.training.metrics_file import read_history

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
GRID = ROOT / "examples" / "grids" / "input_interfaces.yaml"
CELL = "numlayers2-seed1-binary"


def rows(name):
    with (RESULTS / name).open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


@pytest.fixture(scope="module")
def losses():
    """``{run: [(iteration, loss, validation loss or None, data checksum)]}``"""
    found = {}
    for row in rows("losses.csv"):
        held_out = float(row["validation loss"]) if row["validation loss"] else None
        found.setdefault(row["run"], []).append(
            (int(row["iteration"]), float(row["lm loss"]), held_out, int(row["data checksum"]))
        )
    return found


def final(losses, depth, seed, variant):
    iteration, _, loss, _ = losses[f"numlayers{depth}-seed{seed}-{variant}"][-1]
    assert iteration == 600
    return loss


def test_every_cell_of_the_grid_is_there(losses):
    grid = read_grid(GRID)
    assert list(losses) == [cell.name for cell in grid.cells] and len(losses) == 42
    # Runs of one seed and depth have read the same samples, runs of other seeds others.
    sums = {name: lines[-1][3] for name, lines in losses.items()}
    by_seed = {seed: {s for n, s in sums.items() if f"seed{seed}-" in n} for seed in (1, 2, 3)}
    assert [len(found) for found in by_seed.values()] == [1, 1, 1]
    assert len(set.union(*by_seed.values())) == 3


def test_the_summary_follows_from_the_losses(losses):
    table = rows("csv/summary.csv")
    assert len(table) == 14
    for row in table:
        depth = row["setting"].removeprefix("num layers ")
        variant = re.sub("[^a-z0-9]", "", row["variant"])
        mine = [final(losses, depth, seed, variant) for seed in (1, 2, 3)]
        first = [final(losses, depth, seed, "learned") for seed in (1, 2, 3)]
        assert float(row["mean loss (nats)"]) == pytest.approx(sum(mine) / 3, abs=1e-4)
        perplexities = [math.exp(loss) for loss in mine]
        assert float(row["mean perplexity"]) == pytest.approx(sum(perplexities) / 3, abs=2e-3)
        if variant != "learned":
            apart = sorted(a - b for a, b in zip(mine, first, strict=True))
            told = row["loss against it, seed by seed"].split(" to ")
            assert [float(end) for end in told] == pytest.approx([apart[0], apart[-1]], abs=1e-4)


def test_the_pages_figures_are_those_of_the_files(losses):
    """Each row of the page's first table: mean losses at two depths, and the lead of the table."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    table = re.findall(
        r"^\| ([a-z0-9, ]+) \| ([\d.]+) \| (\S+) \| ([\d.]+) \| (\S+) \|", text, re.M
    )
    assert len(table) == 7
    for label, *cells in table:
        variant = label.replace(",", "").replace(" ", "")
        for depth, shown, lead in ((2, *cells[:2]), (6, *cells[2:])):
            mean = sum(final(losses, depth, seed, variant) for seed in (1, 2, 3)) / 3
            first = sum(final(losses, depth, seed, "learned") for seed in (1, 2, 3)) / 3
            assert float(shown) == pytest.approx(mean, abs=6e-4)
            if variant != "learned":
                assert float(lead) == pytest.approx(mean - first, abs=6e-4)


def test_the_table_of_budgets(losses):
    found = {r["run"]: float(r["validation loss"] or "nan") for r in rows("budget_losses.csv")}
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for depth in (2, 6):
        name = f"numlayers{depth}-trainiters{{}}-{{}}"
        half, twice = (
            found[name.format(n, "binary")] - found[name.format(n, "learned")] for n in (300, 1200)
        )
        once = final(losses, depth, 1, "binary") - final(losses, depth, 1, "learned")
        assert f"| {depth} layers | {half:.3f} | {once:.3f} | {twice:.3f} |" in text


def train_cell(folder, extra):
    """Train the cell anew from its committed command, but for the folders; returns its history."""
    text = (RESULTS / "report.md").read_text(encoding="utf-8")
    (command,) = [
        line for line in text.splitlines() if f"--run-dir runs/input_interfaces/{CELL} " in line
    ]
    (job,) = [job for job in plan_runs(read_grid(GRID)) if job.name == CELL]
    assert command == job.command_text
    words = [word.replace("runs/input_interfaces", str(folder)) for word in shlex.split(command)]
    assert words[0] == "python"
    done = subprocess.run(
        [sys.executable, *words[1:], *extra], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return read_history(folder / CELL / "metrics.jsonl")


def compare(history, expected, tolerance):
    if history.train[0]["data checksum"] != expected[0][3]:
        pytest.skip("this Python's library is another text than the one the results are of")
    for row, (iteration, loss, *_) in zip(history.train, expected, strict=False):
        assert row["iteration"] == iteration
        assert row["lm loss"] == pytest.approx(loss, abs=tolerance)


def test_the_start_of_a_cell_reproduces(tmp_path, losses):
    history = train_cell(tmp_path, ["--exit-interval", "30"])
    assert len(history.train) == 3
    compare(history, losses[CELL], 1e-4)


@pytest.mark.slow
def test_a_whole_cell_reproduces(tmp_path, losses):
    history = train_cell(tmp_path, [])
    assert len(history.train) == 60
    compare(history, losses[CELL], 0.02)
    assert history.validation[-1]["lm loss"] == pytest.approx(losses[CELL][-1][2], abs=0.005)
