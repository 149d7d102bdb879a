"""Sampling against distributions and sequences worked out by hand."""

import math

import pytest
import torch

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.interop.generation import generate

# Four tokens with these probabilities after any context.
PROBABILITIES = [0.15, 0.5, 0.05, 0.3]


def constant(ids: torch.Tensor) -> torch.Tensor:
    """Logits of PROBABILITIES, and two padding entries that would always win."""
    logits = torch.tensor([*(math.log(p) for p in PROBABILITIES), 50.0, 60.0])
    return logits.expand(*ids.shape, 6)


def successor(ids: torch.Tensor) -> torch.Tensor:
    """A causal "model" that is sure of (sum of all ids so far) mod 7."""
    return torch.nn.functional.one_hot(ids.cumsum(dim=1) % 7, 8).float()


def frequencies(count: int = 4000, **options) -> list[float]:
    (tokens,) = generate(
        constant, [0], max_new_tokens=count, vocab_size=4, max_context=1, **options
    )
    assert len(tokens) == count
    return [tokens.count(token) / count for token in range(4)]


def assert_close(found: list[float], expected: list[float], count: int = 4000) -> None:
    """Each frequency within five standard deviations of its expectation; impossible: never."""
    for frequency, p in zip(found, expected, strict=True):
        assert abs(frequency - p) <= 5 * math.sqrt(p * (1 - p) / count)


def test_greedy_follows_the_most_likely_token():
    # 1+2 = 3; then the running sums 6, 12, 24, 48 mod 7 are 6, 5, 3, 6
    expected = [3, 6, 5, 3, 6]
    assert generate(successor, [1, 2], max_new_tokens=5, vocab_size=7, temperature=0) == [expected]
    prompt = torch.tensor([[1, 2], [2, 1]], dtype=torch.int32)
    found = generate(successor, prompt, max_new_tokens=5, vocab_size=7, temperature=0, seed=9)
    assert found == [expected, expected]
    ids = prompt[0].numpy()
    assert generate(successor, ids, max_new_tokens=2, vocab_size=7, temperature=0) == [[3, 6]]
    assert generate(successor, prompt[0], max_new_tokens=0, vocab_size=7) == [[]]


def test_prompts_of_unequal_length_are_continued_as_if_alone():
    def model(ids: torch.Tensor) -> torch.Tensor:
        return successor(ids + 1)  # padding with id 0 changes what comes after it

    prompts = [[1, 2], [5], [3, 3, 3, 3]]
    together = generate(model, prompts, max_new_tokens=6, vocab_size=7, temperature=0)
    for prompt, found in zip(prompts, together, strict=True):
        alone = generate(model, prompt, max_new_tokens=6, vocab_size=7, temperature=0)
        assert [found] == alone


def test_eod_ends_a_text_and_is_left_out():
    shapes = []

    def model(ids: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(ids.shape))
        return successor(ids)

    # 1+2: 3, 6, then 12 mod 7 = 5, the EOD; 4: 4, 8 mod 7 = 1, 9 mod 7 = 2, 11 mod 7 = 4
    found = generate(model, [[1, 2], [4]], max_new_tokens=4, vocab_size=7, temperature=0, eod=5)
    assert found == [[3, 6], [4, 1, 2, 4]]
    assert shapes == [(2, 2), (2, 3), (2, 4), (1, 4)]  # the finished row is left out
    both = generate(model, [[1, 2], [2, 1]], max_new_tokens=90, vocab_size=7, temperature=0, eod=5)
    assert both == [[3, 6], [3, 6]]


def test_only_the_latest_tokens_are_shown_to_the_model():
    widths = []

    def model(ids: torch.Tensor) -> torch.Tensor:
        widths.append(ids.shape[1])
        return successor(ids)

    # sums of the latest two: 1+2 = 3, 2+3 = 5, 3+5 = 8 -> 1, 5+1 = 6
    found = generate(model, [6, 1, 2], max_new_tokens=4, vocab_size=7, temperature=0, max_context=2)
    assert found == [[3, 5, 1, 6]]
    assert set(widths) == {2}


def test_sampling_follows_the_distribution_and_never_leaves_the_vocabulary():
    assert_close(frequencies(seed=1), PROBABILITIES)


def test_temperature_sharpens():
    # temperature 1/2 squares the probabilities
    squares = [p * p for p in PROBABILITIES]
    assert_close(frequencies(temperature=0.5, seed=2), [p / sum(squares) for p in squares])
    assert frequencies(temperature=0, count=20) == [0, 1, 0, 0]
    assert frequencies(temperature=1e-300, count=20) == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"top_k": 2}, [0, 0.5 / 0.8, 0, 0.3 / 0.8]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_k": 0}, PROBABILITIES),
        ({"top_k": 99}, PROBABILITIES),
        ({"top_p": 1.0}, PROBABILITIES),
        ({"top_p": 0.01}, [0, 1, 0, 0]),
        ({"top_p": 0.79}, [0, 0.5 / 0.8, 0, 0.3 / 0.8]),
        ({"top_p": 0.83}, [0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95]),
        # of the three most likely the first two hold 0.8 / 0.95 = 0.842
        ({"top_k": 3, "top_p": 0.83}, [0, 0.5 / 0.8, 0, 0.3 / 0.8]),
    ],
)
def test_top_k_and_top_p_cut_the_tail(options, expected):
    assert_close(frequencies(seed=3, **options), expected)


def test_top_k_keeps_exactly_k_of_equal_tokens():
    def flat(ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*ids.shape, 5000)

    (tokens,) = generate(flat, [0], max_new_tokens=300, vocab_size=5000, top_k=3, max_context=1)
    assert set(tokens) == {0, 1, 2}


def test_the_seed_decides_and_every_prompt_has_its_own_stream():
    def sample(prompts, seed):
        return generate(
            constant, prompts, max_new_tokens=40, vocab_size=4, seed=seed, max_context=1
        )

    torch.manual_seed(0)
    before = torch.get_rng_state()
    three = sample([[0], [0], [0]], seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert sample([[0], [0], [0]], seed=5) == three
    assert sample([[0]], seed=5) == three[:1]
    assert len({tuple(tokens) for tokens in three}) == 3
    assert sample([[0]], seed=6) != three[:1]


def test_half_precision_logits_and_forbidden_tokens():
    def model(ids: torch.Tensor) -> torch.Tensor:
        logits = constant(ids).to(torch.bfloat16).clone()
        logits[..., 1] = -math.inf
        return logits

    (tokens,) = generate(model, [0], max_new_tokens=300, vocab_size=4, max_context=1)
    assert set(tokens) == {0, 2, 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "--temperature -1.0: choose 0 or more"),
        ({"temperature": math.nan}, "--temperature nan"),
        ({"top_k": -1}, "--top-k -1"),
        ({"top_p": 0.0}, "--top-p 0.0: choose above 0 and at most 1"),
        ({"top_p": 1.5, "top_k": -2}, "--top-k -2: .*--top-p 1.5"),
        ({"max_new_tokens": -1}, "--max-new-tokens -1"),
        ({"max_context": 0}, "max_context 0"),
        ({"prompt_ids": []}, "prompt 0 is empty"),
        ({"prompt_ids": [[1], []]}, "prompt 1 is empty"),
        ({"prompt_ids": [[1], [2, 4]]}, "prompt 1 has id 4, outside 0..3"),
        ({"prompt_ids": [-1]}, "prompt 0 has id -1"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    arguments = {"prompt_ids": [0], "max_new_tokens": 1, "vocab_size": 4} | options
    with pytest.raises(UserError, match=message):
        generate(constant, arguments.pop("prompt_ids"), **arguments)


def test_broken_models_are_reported():
    def nan(ids: torch.Tensor) -> torch.Tensor:
        return torch.full((*ids.shape, 4), math.nan)

    with pytest.raises(UserError, match="logits are not numbers"):
        generate(nan, [0], max_new_tokens=1, vocab_size=4)
    with pytest.raises(ValueError, match=r"logits of ids \(1, 1\) have shape \(1, 1, 6\)"):
        generate(constant, [0], max_new_tokens=1, vocab_size=7)
