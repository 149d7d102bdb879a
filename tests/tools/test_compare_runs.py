"""`tools/compare_runs.py` at a tiny size: what it trains, resumes, refuses and reports."""

import csv
import html
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from fixedcode_megatron.comparison.command import main
from fixedcode_megatron.comparison.grid import read_grid
from fixedcode_megatron.comparison.matched import differing_settings
from fixedcode_megatron.comparison.runs import plan_runs
from fixedcode_megatron.data.indexed import IndexedDatasetWriter
from fixedcode_megatron.training.metrics_file import read_history

ROOT = Path(__file__).parents[2]
VOCAB_SIZE = 50  # K = 6; the head has 128 rows
ITERATIONS = 6
MODEL = (
    f"--vocab-size {VOCAB_SIZE} --tokenizer-type NullTokenizer --num-layers 2 --hidden-size 36 "
    "--num-attention-heads 2 --ffn-hidden-size 40 --seq-length 16 --micro-batch-size 2 "
    "--global-batch-size 4 --normalization RMSNorm --disable-bias-linear --lr 1e-2 "
    "--hidden-dropout 0 --attention-dropout 0 --lr-warmup-iters 1 --eval-interval 2 --eval-iters 3 "
    f"--train-iters {ITERATIONS} --log-interval 1 --split 80,20,0"
)
RUNS = ["learned-seed1", "learned-seed2", "binary-seed1", "binary-seed2"]


@pytest.fixture(autouse=True)
def _signals(monkeypatch):
    """The tool's handler of SIGTERM is taken back, and its processes use one thread."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("data") / "corpus"
    random = np.random.default_rng(0)
    with IndexedDatasetWriter(prefix, "uint16") as writer:
        for _ in range(40):
            start = int(random.integers(VOCAB_SIZE))
            writer.add_document([(start + 7 * i) % VOCAB_SIZE for i in range(30)])
        writer.commit()
    return prefix


def write_grid(path, text):
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data):
    """A grid of two interfaces and two seeds, trained: the grid file and the folder."""
    folder = tmp_path_factory.mktemp("compare")
    grid = write_grid(
        folder / "grid.yaml",
        f"title: Two <inputs>\nfolder: {folder}/out\nflags: {MODEL} --data-path {data}\n"
        "axes:\n  input_interface: [learned, binary]\n  seed: [1, 2]\n",
    )
    assert main([str(grid)]) == 0
    return grid, folder / "out"


def logs(folder):
    return {name: (folder / name / "train.log").read_text() for name in RUNS}


def final(folder, name):
    return read_history(folder / name / "metrics.jsonl").validation[-1]["lm loss"]


def test_run_again_it_does_nothing(finished, capsys):
    grid, folder = finished
    before, page = logs(folder), (folder / "report.html").read_text()
    assert main([str(grid)]) == 0
    assert logs(folder) == before
    assert (folder / "report.html").read_text() == page
    capsys.readouterr()
    assert main([str(grid), "--slurm"]) == 0 and capsys.readouterr().out == ""
    assert main([str(grid), "--dry-run"]) == 0
    assert capsys.readouterr().out == "every run is complete\n"


def test_a_deleted_run_is_trained_again_and_resumes_where_it_was_interrupted(finished, capsys):
    grid, folder = finished
    name, before = "binary-seed1", logs(folder)
    loss, page = final(folder, name), (folder / "csv" / "runs.csv").read_text()
    shutil.rmtree(folder / name)
    assert main([str(grid), "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if "missing" in line] \
        == [name]  # fmt: skip
    assert main([str(grid), "--report"]) == 0
    assert f"Not complete, and left out: {name}." in (folder / "report.md").read_text()
    (job,) = [job for job in plan_runs(read_grid(grid)) if job.name == name]
    subprocess.run([*job.command, "--exit-interval", "3"], check=True, capture_output=True)
    assert len(read_history(folder / name / "metrics.jsonl").train) == 3
    assert main([str(grid)]) == 0
    after = logs(folder)
    assert "continuing from" in after.pop(name)
    assert after == {other: log for other, log in before.items() if other != name}
    assert final(folder, name) == loss
    assert (folder / "csv" / "runs.csv").read_text() == page


def test_runs_beside_each_other_come_to_the_same(finished, tmp_path):
    grid, folder = finished
    for name in RUNS[1:3]:
        shutil.copytree(folder / name, tmp_path / name)
    assert main([str(grid), "--folder", str(tmp_path), "--jobs", "2"]) == 0
    for name in RUNS:
        assert final(tmp_path, name) == final(folder, name)


def test_a_run_that_breaks_down_ends_those_beside_it(tmp_path, data):
    grid = write_grid(
        tmp_path / "grid.yaml",
        f"folder: {tmp_path}/out\nflags: {MODEL} --data-path {data} --train-iters 100000 "
        "--eval-interval 100000\naxes:\n  input_interface: [learned, binary]\n",
    )
    tool = [sys.executable, str(ROOT / "tools" / "compare_runs.py"), str(grid), "-j", "2"]
    with subprocess.Popen(tool, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        folders = {name: tmp_path / "out" / name for name in ("learned", "binary")}
        until = time.monotonic() + 120
        while not all(read_history(f / "metrics.jsonl").train for f in folders.values()):
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.1)
        for child in psutil.Process(process.pid).children():
            if str(folders["binary"]) in child.cmdline():
                child.kill()
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert b"training of binary ended with status -9 at iteration 0 of 100000" in errors
    assert b"training of learned" not in errors
    trained = read_history(folders["learned"] / "metrics.jsonl").train[-1]["iteration"]
    tracker = folders["learned"] / "checkpoints" / "latest_checkpointed_iteration.txt"
    assert int(tracker.read_text()) == trained > 0


def test_a_report_on_some_runs(finished, tmp_path):
    grid, folder = finished
    shutil.copytree(folder / "learned-seed2", tmp_path / "learned-seed2")
    assert main([str(grid), "--report", "--folder", str(tmp_path)]) == 0
    rows = list(csv.DictReader((tmp_path / "csv" / "summary.csv").open()))
    assert [(row["variant"], row["seeds"], row["seed range / mean"]) for row in rows] == [
        ("learned", "1", "-")
    ]
    text = (tmp_path / "report.md").read_text()
    assert "left out: learned-seed1, binary-seed1, binary-seed2." in text


def test_a_run_of_another_flag_is_refused_by_its_name(finished, capsys):
    grid, folder = finished
    path = folder / "learned-seed2" / "config.yaml"
    text = path.read_text()
    path.write_text(text.replace("clip_grad: 1.0", "clip_grad: 0.5"))
    assert main([str(grid)]) == 2
    found = capsys.readouterr().err
    assert "learned-seed2 was trained with other settings" in found
    assert "--clip-grad 0.5 then, 1.0 now" in found
    path.write_text(text.replace("save_interval: null", "save_interval: 3"))
    assert main([str(grid), "--list"]) == 0  # how often it was saved changes nothing
    path.write_text(text)


def test_runs_of_other_data_or_weights_are_refused(finished, capsys):
    grid, folder = finished
    metrics, weights = (
        folder / "binary-seed2" / n for n in ("metrics.jsonl", "initial_weights.json")
    )
    text = metrics.read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    at_three = next(r for r in rows if r["kind"] == "train" and r["iteration"] == 3)
    at_three["data checksum"] += 1
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main([str(grid)]) == 2
    assert "learned-seed2 and binary-seed2 have not read the same samples" in (
        error := capsys.readouterr().err
    )
    assert "at iteration 3" in error
    metrics.write_text(text)
    record = weights.read_text()
    content = json.loads(record)
    content["head"]["checksum"] = "0" * 16
    weights.write_text(json.dumps(content))
    assert main([str(grid)]) == 2
    assert "started with other weights in the head" in capsys.readouterr().err
    weights.write_text(record)


def tables_of_page(page):
    """``{key: rows of cells}`` of every table in the page."""
    return {
        key: [
            [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
            for row in re.findall(r"<tr>(.*?)</tr>", body)
        ]
        for key, body in re.findall(r'<table data-table="(\w+)">(.*?)</table>', page, re.S)
    }


def test_page_markdown_and_csv_have_the_same_numbers(finished):
    _, folder = finished
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    tables = tables_of_page(page)
    files = {path.stem: list(csv.reader(path.open())) for path in (folder / "csv").glob("*.csv")}
    assert tables == files
    for key in ("summary", "machine", "gradients", "ranks", "runs"):
        for row in files[key]:
            assert "| " + " | ".join(row) + " |" in text
    assert {"loss_tokens", "loss_time", "gradient_head", "effective_rank"} <= files.keys()


def test_numbers_of_the_report(finished):
    _, folder = finished
    files = {
        path.stem: list(csv.DictReader(path.open())) for path in (folder / "csv").glob("*.csv")
    }
    # Head 128 x 36; a layer: QKV 36 x 108, projection 36 x 36, MLP 2 x 36 x 40, two norms; a norm.
    fixed = 128 * 36 + 2 * (36 * 108 + 36 * 36 + 2 * 36 * 40 + 2 * 36) + 36
    learned, binary = files["summary"]
    assert learned["parameters"] == f"{fixed + 128 * 36:,}" and binary["parameters"] == f"{fixed:,}"
    assert binary["input parameters"] == "0" and binary["seeds"] == "2"
    ppl = {n: math.exp(final(folder, n)) for n in RUNS}
    a, b = (ppl["binary-seed1"], ppl["binary-seed2"])
    mean = (a + b) / 2
    assert binary["mean perplexity"] == f"{mean:,.3f}"
    assert binary["seed range / mean"] == f"{abs(a - b) / mean:.2%}"
    reference = (ppl["learned-seed1"] + ppl["learned-seed2"]) / 2
    assert binary["against the first"] == f"{mean / reference - 1:+.2%}"
    weights = {row["run"]: (row["initial layers"], row["initial head"]) for row in files["runs"]}
    assert weights["learned-seed1"] == weights["binary-seed1"] != weights["binary-seed2"]
    ranks = {(row["variant"], row["after"]): int(row["rank"]) for row in files["ranks"]}
    assert ranks["binary", "input"] <= 6  # Proposition 3
    assert ranks["learned", "input"] > 6 and ranks["binary", "layer 1"] > 6
    last = [row for row in files["loss_tokens"] if row["variant"] == "binary"][-1]
    assert float(last["tokens (millions)"]) == ITERATIONS * 4 * 16 / 1e6
    losses = sorted(final(folder, n) for n in ("binary-seed1", "binary-seed2"))
    assert [last["least"], last["largest"]] == [f"{loss:.4f}" for loss in losses]
    assert files["gradients"][1]["input"] == "-" and float(files["gradients"][0]["input"]) > 0


def test_every_loss_is_written_down(finished):
    _, folder = finished
    rows = list(csv.DictReader((folder / "losses.csv").open()))
    assert [(row["run"], row["iteration"]) for row in rows] == [
        (name, str(iteration)) for name in RUNS for iteration in range(1, ITERATIONS + 1)
    ]
    history = read_history(folder / "binary-seed1" / "metrics.jsonl")
    mine = [row for row in rows if row["run"] == "binary-seed1"]
    assert [row["lm loss"] for row in mine] == [f"{row['lm loss']:.6f}" for row in history.train]
    assert [row["validation loss"] for row in mine][:3:2] == ["", ""]  # evaluated every second one
    assert float(mine[-1]["validation loss"]) == pytest.approx(final(folder, "binary-seed1"))
    assert int(mine[-1]["data checksum"]) == history.data_checksum


def test_a_fine_tuning_starts_with_the_run_of_the_same_name(finished, tmp_path):
    _, folder = finished
    grid = write_grid(
        tmp_path / "grid.yaml",
        f"flags: --config {folder}/{{name}}/config.yaml --config sft --pretrained-checkpoint "
        f"{folder}/{{name}}/checkpoints --train-data-path x.jsonl --global-batch-size 4\n"
        "axes: {input_interface: [learned, binary], seed: [2]}",
    )
    one, two = jobs = plan_runs(read_grid(grid, folder=str(tmp_path / "out")))
    assert one.cfg.checkpoint.pretrained_checkpoint == f"{folder}/learned-seed2/checkpoints"
    assert (two.cfg.data.sft, two.cfg.transformer.hidden_size, two.cfg.training.seed) == (
        True,
        36,
        2,
    )
    assert differing_settings(jobs) == {"input_interface", "pretrained_checkpoint"}
