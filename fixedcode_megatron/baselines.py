"""How well counting alone predicts a token stream: what any trained model must beat.

Both baselines predict each token of the validation stream but the first, as a language model does,
and both give every token of the vocabulary a probability above 0. Memory grows with the number of
distinct pairs, never with the square of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fixedcode_megatron.errors import UserError

Tokens = npt.NDArray[np.integer]

DISCOUNT = 0.75
_CHUNK = 1 << 22  # tokens that are widened to int64 and sorted at a time


@dataclass(frozen=True)
class Baselines:
    """Mean negative log-likelihood of the validation stream, in nats per token."""

    unigram: float
    bigram: float


def baseline_losses(train: Tokens, valid: Tokens, vocab_size: int) -> Baselines:
    """Loss of the unigram and the bigram baseline on `valid` after counting `train`.

    Unigram, add-one smoothing over N training tokens: `p(w) = (c(w) + 1) / (N + V)`.

    Bigram, interpolated absolute discounting with D = 0.75: `p(w | v) = max(c(v, w) - D, 0) / c(v)
    + D n(v) / c(v) * p(w)`, where c(v) counts the pairs that start with v and n(v) the distinct
    ones among them; `p(w | v) = p(w)` for a v that starts no pair.

    Parameters
    ----------
    train, valid : integer arrays [n] with n >= 2, memory maps too
        Streams of token ids below `vocab_size`; documents follow each other with their EOD tokens.
    vocab_size : int

    Raises
    ------
    UserError
        If a stream is too short or holds an id out of range.
    """
    counts = _count_tokens(train, vocab_size, "training")
    targets = _count_tokens(valid, vocab_size, "validation")
    targets[valid[0]] -= 1  # the first token is context only
    unigram = (counts + 1) / (len(train) + vocab_size)
    predictions = len(valid) - 1
    pairs, pair_counts = _count_pairs(valid, vocab_size)
    log_bigram = np.log(_bigram_probabilities(train, unigram, pairs, vocab_size))
    return Baselines(
        unigram=float(-(targets @ np.log(unigram)) / predictions),
        bigram=float(-(pair_counts @ log_bigram) / predictions),
    )


def prediction_losses(
    train: Tokens, contexts: Tokens, targets: Tokens, vocab_size: int
) -> Baselines:
    """The same two losses over predictions in any order, such as those of a shuffled split.

    Parameters
    ----------
    train : integer array [n] with n >= 2
        As in `baseline_losses`.
    contexts, targets : integer arrays [m] with m >= 1
        The token before each prediction, and the token to predict.
    vocab_size : int

    Raises
    ------
    UserError
        If the training stream is too short or holds an id out of range.
    """
    assert contexts.shape == targets.shape and targets.ndim == 1 and len(targets)
    unigram = (_count_tokens(train, vocab_size, "training") + 1) / (len(train) + vocab_size)
    wanted = contexts.astype(np.int64) * vocab_size + targets
    pairs, pair_counts = np.unique(wanted, return_counts=True)
    log_bigram = np.log(_bigram_probabilities(train, unigram, pairs, vocab_size))
    return Baselines(
        unigram=float(-np.log(unigram)[targets].mean()),
        bigram=float(-(pair_counts @ log_bigram) / len(targets)),
    )


def _bigram_probabilities(
    train: Tokens, unigram: npt.NDArray[np.float64], pairs: npt.NDArray[np.int64], vocab_size: int
) -> npt.NDArray[np.float64]:
    """p(w | v) for each pair `v * vocab_size + w`: float64, shape of `pairs`."""
    seen, seen_counts = _count_pairs(train, vocab_size)
    starts = seen // vocab_size
    context = np.bincount(starts, weights=seen_counts, minlength=vocab_size)
    distinct = np.bincount(starts, minlength=vocab_size)
    first, second = pairs // vocab_size, pairs % vocab_size
    place = np.minimum(np.searchsorted(seen, pairs), len(seen) - 1)
    count = np.where(seen[place] == pairs, seen_counts[place], 0)
    total = np.maximum(context[first], 1)
    discounted = np.maximum(count - DISCOUNT, 0) / total
    left_over = np.where(context[first] > 0, DISCOUNT * distinct[first] / total, 1.0)
    return discounted + left_over * unigram[second]


def _count_tokens(tokens: Tokens, vocab_size: int, name: str) -> npt.NDArray[np.int64]:
    """How often each id occurs: int64 [vocab_size]."""
    if tokens.ndim != 1 or len(tokens) < 2:
        raise UserError(f"the {name} tokens have shape {tokens.shape}: 2 or more in a row needed")
    counts = np.zeros(vocab_size, dtype=np.int64)
    for start in range(0, len(tokens), _CHUNK):
        chunk = tokens[start : start + _CHUNK].astype(np.int64)
        low, high = chunk.min(), chunk.max()
        if low < 0 or high >= vocab_size:
            raise UserError(
                f"the {name} tokens hold id {low if low < 0 else high}, outside 0..{vocab_size - 1}"
            )
        counts += np.bincount(chunk, minlength=vocab_size)
    return counts


def _count_pairs(
    tokens: Tokens, vocab_size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The distinct pairs of neighbours `v * vocab_size + w`, sorted, and how often each occurs."""
    pairs = np.empty(0, dtype=np.int64)
    counts = np.empty(0, dtype=np.int64)
    for start in range(0, len(tokens) - 1, _CHUNK):
        chunk = tokens[start : start + _CHUNK + 1].astype(np.int64)
        new, new_counts = np.unique(chunk[:-1] * vocab_size + chunk[1:], return_counts=True)
        pairs, place = np.unique(np.concatenate([pairs, new]), return_inverse=True)
        weights = np.concatenate([counts, new_counts])
        counts = np.bincount(place, weights=weights).astype(np.int64)
    return pairs, counts
