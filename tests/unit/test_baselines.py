"""Counting baselines against values worked out by hand and by dictionaries."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from fixedcode_megatron import baselines
from fixedcode_megatron.baselines import baseline_losses, prediction_losses
from fixedcode_megatron.errors import UserError

TRAIN = np.array([0, 1, 0, 1, 2, 0], dtype=np.uint16)
# Counts 3, 2, 1 of 6 tokens, V = 3: p = 4/9, 3/9, 2/9. Pairs 01 twice, 10, 12 and 20 once;
# the last 0 starts none. With D = 3/4:
#   p(1|0) = 1.25/2 + 0.75/2 * 3/9 = 3/4        p(0|0) = 0.75/2 * 4/9 = 1/6
#   p(0|1) = 0.25/2 + 0.75 * 4/9 = 11/24        p(1|1) = 0.75 * 3/9 = 6/24
#   p(2|1) = 0.25/2 + 0.75 * 2/9 = 7/24         p(0|2) = 0.25 + 0.75 * 4/9 = 7/12


def slow_losses(train: list[int], valid: list[int], vocab_size: int) -> tuple[float, float]:
    """The definitions, one token at a time."""
    counts, pairs = Counter(train), Counter(pairwise(train))
    contexts, followers = Counter(train[:-1]), Counter(first for first, _ in pairs)
    unigram_sum = bigram_sum = 0.0
    for first, second in pairwise(valid):
        unigram = (counts[second] + 1) / (len(train) + vocab_size)
        bigram = unigram
        if contexts[first]:
            bigram = max(pairs[first, second] - 0.75, 0) / contexts[first]
            bigram += 0.75 * followers[first] / contexts[first] * unigram
        unigram_sum -= math.log(unigram)
        bigram_sum -= math.log(bigram)
    return unigram_sum / (len(valid) - 1), bigram_sum / (len(valid) - 1)


def test_losses_worked_out_by_hand():
    losses = baseline_losses(TRAIN, np.array([0, 1, 1, 2]), 3)
    assert losses.unigram == pytest.approx(-(2 * math.log(3 / 9) + math.log(2 / 9)) / 3)
    assert losses.bigram == pytest.approx(-math.log(3 / 4 * 6 / 24 * 7 / 24) / 3)
    losses = baseline_losses(TRAIN, np.array([0, 0]), 3)
    assert losses.unigram == pytest.approx(-math.log(4 / 9))
    assert losses.bigram == pytest.approx(math.log(6))
    assert baseline_losses(TRAIN, np.array([1, 0]), 3).bigram == pytest.approx(math.log(24 / 11))
    assert baseline_losses(TRAIN, np.array([2, 0]), 3).bigram == pytest.approx(math.log(12 / 7))


def test_predictions_in_any_order():
    # The pairs 0->1, 1->2, 2->0 and 0->1 again, from no one stream.
    losses = prediction_losses(TRAIN, np.array([2, 0, 1, 0]), np.array([0, 1, 2, 1]), 3)
    assert losses.unigram == pytest.approx(-math.log(4 / 9 * 3 / 9 * 2 / 9 * 3 / 9) / 4)
    assert losses.bigram == pytest.approx(-math.log(7 / 12 * 3 / 4 * 7 / 24 * 3 / 4) / 4)


def test_a_context_never_seen_falls_back_to_the_unigram():
    # V = 4: id 3 never occurs, p(0) = 4/10
    losses = baseline_losses(TRAIN, np.array([3, 0]), 4)
    assert losses.bigram == losses.unigram == pytest.approx(-math.log(0.4))


@pytest.mark.parametrize("first", range(4))
def test_probabilities_after_any_context_sum_to_one(first):
    losses = [baseline_losses(TRAIN, np.array([first, second]), 4) for second in range(4)]
    assert sum(math.exp(-loss.unigram) for loss in losses) == pytest.approx(1)
    assert sum(math.exp(-loss.bigram) for loss in losses) == pytest.approx(1)


def test_a_uniform_guess_when_training_says_nothing():
    train = np.arange(8)
    losses = baseline_losses(train, np.array([5, 3, 3, 0]), 8)
    assert losses.unigram == pytest.approx(math.log(8))


@pytest.mark.parametrize("chunk", [1, 3, 1000, 1 << 22])
@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_counting_in_pieces_changes_nothing(monkeypatch, chunk, dtype):
    monkeypatch.setattr(baselines, "_CHUNK", chunk)
    generator = np.random.default_rng(1)
    train = (generator.random(400) ** 3 * 11).astype(dtype)
    valid = (generator.random(150) ** 2 * 13).astype(dtype)
    found = baseline_losses(train, valid, 13)
    expected = slow_losses(train.tolist(), valid.tolist(), 13)
    assert (found.unigram, found.bigram) == pytest.approx(expected, rel=1e-12)


def test_a_large_vocabulary_takes_no_square_table(tmp_path):
    generator = np.random.default_rng(2)
    stream = (generator.random(60000) ** 4 * 65536).astype(np.uint16)
    stream[-1] = 65535
    stream.tofile(tmp_path / "stream.bin")
    tokens = np.memmap(tmp_path / "stream.bin", dtype=np.uint16, mode="r")
    found = baseline_losses(tokens[:50000], tokens[50000:], 65536)
    expected = slow_losses(stream[:50000].tolist(), stream[50000:].tolist(), 65536)
    assert (found.unigram, found.bigram) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("train", "valid", "message"),
    [
        ([0], [0, 1], "training tokens have shape .1,.: 2 or more"),
        ([0, 1], [], "validation tokens have shape .0,."),
        ([[0, 1]], [0, 1], "training tokens have shape .1, 2."),
        ([0, 3], [0, 1], "training tokens hold id 3, outside 0..2"),
        ([0, 1], [0, -1], "validation tokens hold id -1, outside 0..2"),
    ],
)
def test_streams_that_do_not_fit_are_refused(train, valid, message):
    with pytest.raises(UserError, match=message):
        baseline_losses(np.array(train, dtype=np.int64), np.array(valid, dtype=np.int64), 3)
