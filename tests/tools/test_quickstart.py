"""`make quickstart`, small: what it writes, that it continues, and the arithmetic of its report."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from fixedcode_megatron.baselines import Baselines
from fixedcode_megatron.codes import TokenCode
from fixedcode_megatron.data.bpe import train_byte_level_bpe
from fixedcode_megatron.data.datasets import build_datasets
from fixedcode_megatron.data.files import open_claimed
from fixedcode_megatron.data.indexed import IndexedDatasetReader, IndexedDatasetWriter
from fixedcode_megatron.data.tokenizers import build_tokenizer
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.jobs.progress import TrainingView, clock
from fixedcode_megatron.jobs.text import text_table
from fixedcode_megatron.quickstart import run
from fixedcode_megatron.quickstart.ablation import losses_without_each_bit, zeroed_bit
from fixedcode_megatron.quickstart.analyse import Figures
from fixedcode_megatron.quickstart.curves import smoothed
from fixedcode_megatron.quickstart.plan import plan_jobs
from fixedcode_megatron.quickstart.report import (
    Report,
    bit_rows,
    bit_sentences,
    model_rows,
)
from fixedcode_megatron.training.metrics_file import read_history

TOOL = Path(__file__).parents[2] / "tools" / "quickstart.py"
VOCAB_SIZE = 290  # K = 9; the head has 384 rows
ITERATIONS = 40
MODEL = (
    f"--vocab-size {VOCAB_SIZE} --num-layers 1 --hidden-size 36 --num-attention-heads 2 "
    "--ffn-hidden-size 40 --seq-length 16 --micro-batch-size 2 --global-batch-size 4 "
    f"--train-iters {ITERATIONS} --eval-interval 20 --eval-iters 3 --log-interval 1 --split 80,20,0"
).split()
INTERFACES = ("learned", "binary", "gf2")


@pytest.fixture(scope="module")
def data_flags(tmp_path_factory):
    """A tokenizer of 290 ids and 40 short documents."""
    folder = tmp_path_factory.mktemp("data")
    words = ["the function returns", "a list of names", "if it is given", "or raises ValueError"]
    texts = [" ".join(words[(i * k) % 4] for k in range(1, 12)) for i in range(40)]
    train_byte_level_bpe(texts, VOCAB_SIZE, folder / "tokenizer.json", progress=False)
    ids = build_tokenizer("HuggingFaceTokenizer", str(folder)).encode_batch(texts)
    with IndexedDatasetWriter(folder / "corpus", "uint16") as writer:
        for document in ids:
            writer.add_document([*document, 0])
        writer.commit()
    return ["--data-path", str(folder / "corpus"), "--tokenizer-model", str(folder)]


def command(run_dir, *flags):
    return [sys.executable, str(TOOL), "--run-dir", str(run_dir), *MODEL, *flags]


def quickstart(run_dir, *flags):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command(run_dir, *flags), capture_output=True, text=True, timeout=500, env=environment
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data_flags):
    """The folder and the output of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("quickstart")
    done = quickstart(folder, *data_flags)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_report_of_a_whole_run(finished):
    folder, output = finished
    report = json.loads((folder / "report.json").read_text())
    models = report["models"]
    assert [m["interface"] for m in models] == list(INTERFACES)
    # Head 384 x 36, QKV 36 x 108, projection 36 x 36, MLP 3 x 36 x 40, three norms of 36; the
    # table is as large as the head.
    fixed = 384 * 36 + 36 * 108 + 36 * 36 + 3 * 36 * 40 + 3 * 36
    assert [m["trainable_parameters"] for m in models] == [fixed + 384 * 36, fixed, fixed]
    assert [m["input_parameters"] for m in models] == [384 * 36, 0, 0]
    assert [m["optimizer_bytes"] for m in models] == [8 * (fixed + 384 * 36), 8 * fixed, 8 * fixed]
    assert [m["train_tokens"] for m in models] == [ITERATIONS * 4 * 16] * 3
    assert len({m["data_checksum"] for m in models}) == 1
    assert [m["bit_losses"] and len(m["bit_losses"]) for m in models] == [None, 9, 9]
    for m in models:
        rows = read_history(folder / m["interface"] / "metrics.jsonl")
        assert len(rows.train) == ITERATIONS
        assert m["validation_loss"] == pytest.approx(rows.validation[-1]["lm loss"], rel=1e-6)
        assert m["perplexity"] == pytest.approx(math.exp(m["validation_loss"]))
        assert f"{m['validation_loss']:.3f}" in output
        assert m["sample"]
    text = (folder / "report.md").read_text()
    assert f"| learned | {384 * 36:,} | {fixed + 384 * 36:,} |" in text
    assert "--input-interface gf2" in text and torch.__version__ in text
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_baselines_are_those_of_the_evaluated_tokens(finished, data_flags):
    folder, _ = finished
    report = json.loads((folder / "report.json").read_text())
    assert report["evaluated_tokens"] == 3 * 4 * 16
    (job, *_) = plan_jobs(str(folder), [*MODEL, *data_flags])
    tokenizer = build_tokenizer("HuggingFaceTokenizer", data_flags[3])
    _, valid, _ = build_datasets(
        job.cfg.data, tokenizer, seq_length=16, seed=job.cfg.training.seed, samples=(0, 12, 0)
    )
    reader = IndexedDatasetReader(data_flags[1])
    train = [token for document in range(32) for token in reader[document].tolist()]
    counts = Counter(train)
    losses = [
        -math.log((counts[token] + 1) / (len(train) + VOCAB_SIZE))
        for sample in range(12)
        for token in valid[sample]["labels"].tolist()
    ]
    assert report["baselines"]["unigram"] == pytest.approx(sum(losses) / len(losses))


def test_second_call_trains_nothing(finished, data_flags):
    folder, _ = finished
    before = {name: (folder / name / "train.log").stat().st_mtime_ns for name in INTERFACES}
    first = json.loads((folder / "report.json").read_text())
    done = quickstart(folder, *data_flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained already") == 3
    after = {name: (folder / name / "train.log").stat().st_mtime_ns for name in INTERFACES}
    assert after == before
    assert json.loads((folder / "report.json").read_text()) == first


def test_changed_flags_are_refused(finished, data_flags):
    done = quickstart(finished[0], *data_flags, "--lr", "0.5")
    assert done.returncode == 2
    assert "--lr 0.003 then, 0.5 now" in done.stderr and "another --run-dir" in done.stderr


def wait_for(condition, seconds=200):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_interrupted_run_continues_to_the_same_result(finished, data_flags, tmp_path):
    flags = [*data_flags, "--save-interval", "4"]
    process = subprocess.Popen(
        command(tmp_path, *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    tracker = tmp_path / "learned/checkpoints/latest_checkpointed_iteration.txt"
    wait_for(lambda: tracker.exists() or process.poll() is not None)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "run the same command again to continue" in output.splitlines()[-1]
    assert 1 <= int(tracker.read_text()) < ITERATIONS
    assert not (tmp_path / "report.json").exists()
    again = quickstart(tmp_path, *flags)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "continuing from" in (tmp_path / "learned" / "train.log").read_text()
    for name in INTERFACES:
        one, two = (read_history(f / name / "metrics.jsonl") for f in (finished[0], tmp_path))
        assert [r["lm loss"] for r in one.train] == [r["lm loss"] for r in two.train]
        assert one.validation[-1]["lm loss"] == two.validation[-1]["lm loss"]
        assert one.data_checksum == two.data_checksum


class Embedding(torch.nn.Module):
    """The reference input vectors as a module: ids [b, s] to [s, b, h]."""

    def __init__(self, code: TokenCode, hidden_size: int) -> None:
        super().__init__()
        self.code, self.hidden_size = code, hidden_size

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.code.embed(ids.t(), self.hidden_size)


def test_a_zeroed_bit_shows_the_value_of_a_0_bit():
    ids = torch.tensor([[5, 15]])  # bits 1 0 1 0 and 1 1 1 1
    tiled = Embedding(TokenCode.binary(16, scale=2.0, offset=-0.5), 8)
    five = [1.5, -0.5, 1.5, -0.5]
    with zeroed_bit(tiled, tiled.code, 2):
        assert tiled(ids).tolist() == [[[1.5, -0.5, -0.5, -0.5] * 2], [[1.5, 1.5, -0.5, 1.5] * 2]]
    assert tiled(ids)[0, 0].tolist() == five * 2
    lifted = Embedding(TokenCode.binary(16, lift="interleave"), 8)
    with zeroed_bit(lifted, lifted.code, 0):
        assert lifted(ids)[0, 0].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]


def test_a_zeroed_bit_is_one_of_the_recoded_bits():
    # A swaps the two lowest bits of three, b inverts bit 1: id 1 = 100 -> 010 -> 000.
    code = TokenCode.gf2(8, matrix=[[0, 1, 0], [1, 0, 0], [0, 0, 1]], shift=0b010)
    module = Embedding(code, 3)
    ids = torch.tensor([[0, 1, 7]])
    assert module(ids)[:, 0].tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 1]]
    # With the sum of all elements as "loss" (3): bit 0 is set once, bit 1 once, bit 2 once.
    losses = losses_without_each_bit(module, code, lambda: float(module(ids).sum()))
    assert losses == [2.0, 2.0, 2.0]
    with zeroed_bit(module, code, 1):
        assert module(ids)[:, 0].tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 1]]


def figures(interface, loss, bits):
    return Figures(
        interface=interface, input_parameters=0, trainable_parameters=1000, optimizer_bytes=8000,
        validation_loss=loss, bit_losses=bits, tokens_per_second=1234.4, train_tokens=1,
        data_checksum=1, sample="",
    )  # fmt: skip


def test_arithmetic_of_the_report():
    models = [figures("learned", 2.0, None), figures("binary", 3.0, [3.25, 2.875])]
    report = Report(
        models=models,
        baselines=Baselines(unigram=4.5, bigram=2.5),
        evaluated_tokens=10,
        commands=[],
        versions={},
    )
    assert model_rows(report) == [
        ("learned", "0", "1,000", "8,000", "2.000", "7.4", "2.500", "1,234"),
        ("binary", "0", "1,000", "8,000", "3.000", "20.1", "1.500", "1,234"),
        ("(unigram)", "", "", "", "4.500", "90.0", "0.000", ""),
        ("(bigram)", "", "", "", "2.500", "12.2", "2.000", ""),
    ]
    header, rows = bit_rows(report)
    assert header == ("code bit zeroed", "binary")
    assert rows == [("0", "+0.250"), ("1", "-0.125")]
    assert "does NOT always raise the loss (by -0.125 to 0.250 nats)" in bit_sentences(report)[0]
    found = report.to_dict()["models"]
    assert [m["every_bit_raises_the_loss"] for m in found] == [None, False]
    assert found[1]["bit_loss_increases"] == [0.25, -0.125]
    assert text_table(("a", "bb"), [("ccc", "1")]) == "a    bb\n---  --\nccc   1"


def test_history_of_a_run_that_was_killed_and_continued(tmp_path):
    path = tmp_path / "metrics.jsonl"
    # Saved at 3, killed after 4, continued from 3.
    rows = [(2, 10), (3, 1), (4, 7), (4, 7), (5, 5)]
    lines = [
        json.dumps({"kind": "train", "iteration": i, "data checksum": c, "tokens per second": i})
        for i, c in rows
    ]
    lines.insert(2, json.dumps({"kind": "validation", "iteration": 3, "lm loss": 1.0}))
    path.write_text("\n".join([*lines, '{"kind": "tra']))
    history = read_history(path)
    assert [row["iteration"] for row in history.train] == [2, 3, 4, 5]
    assert history.data_checksum == 23 and history.tokens_per_second == 3.5
    assert not history.has_ended(5)  # its last evaluation is missing
    assert history.has_ended(3)


def test_smoothing():
    assert smoothed([1.0, 2.0, 0.0], 0.75) == [1.0, 1.25, 0.9375]


class Recorder:
    """A stream that is no terminal."""

    def __init__(self):
        self.text = ""

    def isatty(self):
        return False

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_view_of_progress_reads_the_training_log():
    stream = Recorder()
    model = TrainingView(stream, 40).start("[1/3] learned", 0, 40)
    step = " [2026-01-01 00:00:00] iteration       10/      40 | x | lm loss: 5.5E+00 | y | "
    assert model.feed(step + "tokens per second per GPU: 6123.4 | MFU: n/a |\n")
    assert model.feed(
        " validation loss at iteration 10 | lm loss value: 6.25E+00 | lm loss PPL: 5 |"
    )
    assert not model.feed("saved checkpoint somewhere\n")
    last = stream.text.splitlines()[-1]
    assert last.startswith("  [1/3] learned   10/40 | ")
    assert last.endswith(" | loss 5.500 | validation 6.250 | 6,123 tokens/s")
    assert clock(125) == "2:05"


def test_on_a_terminal_one_line_is_written_over():
    stream = Recorder()
    stream.isatty = lambda: True
    view = TrainingView(stream, 40)
    view.start("learned", 0, 40)
    assert "\n" not in stream.text
    view.clear()
    assert stream.text.endswith("\r" + " " * len(stream.text.split("\r")[1]))


def test_view_of_progress_works_out_the_time_left(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stream, line = Recorder(), " validation loss at iteration {} | lm loss value: 6.0 |"
    view = TrainingView(stream, 90)
    first, second = view.start("first", 0, 20), view.start("second", 30, 80)
    now = 20.0
    first.feed(line.format(10))  # 10 of 20, and of 90 for all, in 20 s
    assert "| 0:20 so far, 0:20 left (2:40 for all) |" in stream.text.splitlines()[-1]
    now = 30.0
    second.feed(line.format(40))  # 10 of the 50 that it lacks in 30 s; 20 of 90 for all
    assert "| 0:30 so far, 2:00 left (1:45 for all) |" in stream.text.splitlines()[-1]


def test_two_at_once_are_refused(tmp_path):
    with open_claimed(tmp_path / ".quickstart.lock"), pytest.raises(UserError, match="another"):
        run.quickstart(str(tmp_path), [])
    assert [path.name for path in tmp_path.iterdir()] == [".quickstart.lock"]


def test_flags_that_have_no_place():
    with pytest.raises(UserError, match="--save has no place in the quickstart"):
        plan_jobs("x", ["--save=y"])
    with pytest.raises(UserError, match="--eval-iters 0 leaves nothing to compare"):
        plan_jobs("x", ["--eval-iters", "0"])
    with pytest.raises(UserError, match="did you mean --train-iters"):
        plan_jobs("x", ["--train-iter", "5"])
