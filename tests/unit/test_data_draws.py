"""What a blend is said to draw is what training draws."""

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from fixedcode_megatron.data.blend_command import main
from fixedcode_megatron.data.datasets import build_datasets
from fixedcode_megatron.data.draws import draws, parse_tokens, without_repeats
from fixedcode_megatron.data.indexed import IndexedDatasetWriter
from fixedcode_megatron.data.plans import plan_splits
from fixedcode_megatron.errors import UserError


def write(prefix, tokens, documents):
    """`documents` documents of 10 tokens and more, `tokens` in all."""
    lengths = np.full(documents, 10)
    lengths[-1] += tokens - lengths.sum()
    with IndexedDatasetWriter(prefix, np.uint16) as writer:
        writer.add_documents(np.ones(tokens, np.uint16), lengths)
        writer.commit()
    return str(prefix)


def plan_of(paths, samples, seq_length=8, split="100,0,0"):
    data = SimpleNamespace(data_path=paths, split=split)
    return plan_splits(data, (samples, 0, 0), seq_length)[0]


def test_by_hand(tmp_path):
    a, b = write(tmp_path / "a", 1000, 20), write(tmp_path / "b", 200, 5)
    first, second = draws(plan_of(["8", a, "2", b], 500), 8)
    assert (first.weight, first.documents, first.tokens) == (0.8, 20, 1000)
    assert (first.samples, first.drawn_tokens, first.epochs) == (400, 3200, 3.2)
    assert (second.samples, second.drawn_tokens, second.epochs) == (100, 800, 4.0)
    assert without_repeats([first, second]) == 1000  # 200 / 0.2


@pytest.mark.parametrize("weights", [(0.75, 0.25), (0.5, 0.5), None])
def test_training_draws_the_same(tmp_path, weights):
    a, b = write(tmp_path / "a", 3000, 50), write(tmp_path / "b", 500, 7)
    paths = [a, b] if weights is None else [str(weights[0]), a, str(weights[1]), b]
    tokenizer = SimpleNamespace(vocab_size=10, eod_id=0, unique_identifiers={})
    data = SimpleNamespace(data_path=paths, split="100,0,0")
    dataset, _, _ = build_datasets(data, tokenizer, seq_length=8, seed=1, samples=(400, 0, 0))
    counts = Counter(dataset.dataset_index[:400].tolist())
    parts = draws(plan_of(paths, 400), 8)
    for number, part in enumerate(parts):
        assert abs(counts[number] - part.samples) <= 1
        used = dataset.datasets[number].document_index
        assert part.epochs <= len(used) / part.documents  # as many passes as were laid out


def test_a_single_dataset_repeats(tmp_path):
    a = write(tmp_path / "a", 1000, 10)
    (part,) = draws(plan_of([a], 250), 8)
    assert (part.weight, part.samples, part.epochs) == (1.0, 250, 2.0)


def test_command_line(tmp_path, capsys):
    a, b = write(tmp_path / "a", 1000, 100), write(tmp_path / "b", 100, 10)
    blend = ["--data-path", "0.8", a, "0.2", b, "--split", "90,10,0", "--seq-length", "10"]
    assert main([*blend, "--tokens", "4.5K", "--global-batch-size", "9"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split() for line in shown] == [
        ["dataset", "weight", "documents", "tokens", "samples", "drawn", "tokens", "epochs"],
        [a, "0.8000", "90", "900", "360", "3,600", "4.000"],
        [b, "0.2000", "9", "90", "90", "900", "10.000"],
        ["all", "1.0000", "99", "990", "450", "4,500"],
        ["no", "dataset", "repeats", "before", "450", "tokens"],
        ["50", "iterations", "of", "9", "samples"],
    ]
    for length in (["--train-samples", "450"], ["--train-iters", "50", "--global-batch-size", "9"]):
        assert main([*blend, *length, "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert [part["samples"] for part in figures] == [360, 90]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give one of --tokens, --train-samples, --train-iters; found none"),
        (["--tokens", "1B", "--train-iters", "3"], "found --tokens and --train-iters"),
        (["--train-iters", "3"], "--train-iters needs --global-batch-size"),
        (["--tokens", "many"], "give a number such as 100B"),
        (["--train-samples", "0"], "--train-samples: must be at least 1"),
        (["--tokens", "10", "--split", "0,1,0"], "--split 0,1,0 has no training documents"),
    ],
)
def test_refused(tmp_path, capsys, flags, message):
    a = write(tmp_path / "a", 100, 10)
    assert main(["--data-path", a, "--seq-length", "8", *flags]) == 1
    assert message in capsys.readouterr().err


def test_numbers_of_tokens():
    assert parse_tokens("100B") == 100_000_000_000
    assert parse_tokens("17.093b") == 17_093_000_000
    assert parse_tokens("2.5e9") == 2_500_000_000
    assert parse_tokens("17_093") == 17_093
    for wrong in ("", "B", "0", "-3", "nan", "1e400", "12X"):
        with pytest.raises(UserError, match="100B"):
            parse_tokens(wrong)
