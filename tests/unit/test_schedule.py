"""Learning rate and weight decay of every style, against the formulas written out."""

import math

import pytest
import torch

from fixedcode_megatron.config import ConfigError, parse_args
from fixedcode_megatron.training.schedule import build_scheduler

LR, LOW = 8e-3, 1e-3
ITERATIONS, BATCH = 40, 6
BASE = [
    *("--num-layers=2", "--hidden-size=64", "--num-attention-heads=4", "--vocab-size=256"),
    *("--data-path=x", "--device=cpu", f"--lr={LR}", f"--min-lr={LOW}"),
    *("--micro-batch-size=2", f"--global-batch-size={BATCH}"),
]


def curve(flags: str, name: str = "lr", *, samples: bool = False) -> list[float]:
    """What each of the updates is done with."""
    length = f"--train-samples={ITERATIONS * BATCH}" if samples else f"--train-iters={ITERATIONS}"
    cfg = parse_args([*BASE, length, *flags.split()])
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = build_scheduler(cfg, optimizer)
    found = []
    for _ in range(ITERATIONS):
        found.append(optimizer.param_groups[0][name])
        scheduler.step(increment=BATCH)
    return found


def wsd(share: float, style: str) -> float:
    """What is left of lr - min-lr when a share of WSD's last phase is done."""
    return {
        "linear": 1 - share,
        "cosine": (1 + math.cos(math.pi * share)) / 2,
        "exponential": 2 * 0.5**share - 1,
        "minus_sqrt": 1 - math.sqrt(share),
    }[style]


STYLES = {
    "constant": lambda t: 1.0,
    "linear": lambda t: 1 - (t - 4) / 36,
    "cosine": lambda t: (1 + math.cos(math.pi * (t - 4) / 36)) / 2,
}


@pytest.mark.parametrize("style", STYLES)
def test_warm_up_and_decay(style):
    """Four iterations of warm-up: update t (counted from 0) has t / 4 of the rate."""
    expected = [LR * t / 4 for t in range(4)]
    expected += [LOW + (LR - LOW) * STYLES[style](t) for t in range(4, ITERATIONS)]
    found = curve(f"--lr-decay-style {style} --lr-warmup-iters 4")
    assert found == pytest.approx(expected, rel=1e-12)


def test_inverse_square_root():
    expected = [LR * t / 4 for t in range(4)]
    expected += [max(LOW, LR * math.sqrt(4 / t)) for t in range(4, ITERATIONS)]
    found = curve("--lr-decay-style inverse-square-root --lr-warmup-iters 4")
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("style", ["linear", "cosine", "exponential", "minus_sqrt"])
def test_wsd(style):
    """Flat up to iteration 30, then down to the lowest rate."""
    expected = [LR * t / 4 for t in range(4)] + [LR] * 26
    expected += [LOW + (LR - LOW) * wsd((t - 30) / 10, style) for t in range(30, ITERATIONS)]
    flags = "--lr-decay-style WSD --lr-warmup-iters 4 --lr-wsd-decay-iters 10"
    assert curve(f"{flags} --lr-wsd-decay-style {style}") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "warm_up, samples",
    [
        ("--lr-warmup-iters 8", False),
        ("--lr-warmup-fraction 0.2", False),  # of 40 iterations
        ("--lr-warmup-samples 48", True),
        ("--lr-warmup-fraction 0.2", True),
    ],
)
def test_warm_up_by_iterations_samples_and_fraction(warm_up, samples):
    found = curve(f"--lr-decay-style constant {warm_up} --lr-warmup-init 4e-3", samples=samples)
    expected = [4e-3 + (LR - 4e-3) * min(t, 8) / 8 for t in range(ITERATIONS)]
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_shorter_decay_ends_at_the_lowest_rate():
    found = curve("--lr-decay-style linear --lr-decay-iters 10")
    expected = [LOW + (LR - LOW) * max(0, 1 - t / 10) for t in range(ITERATIONS)]
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("style", ["constant", "linear", "cosine"])
def test_weight_decay(style):
    flags, share = (
        f"--weight-decay-incr-style {style}",
        {
            "constant": lambda r: 1.0,
            "linear": lambda r: r,
            "cosine": lambda r: (1 - math.cos(math.pi * r)) / 2,
        }[style],
    )
    ends = "--start-weight-decay 0.02 --end-weight-decay 0.1"
    flags += " --weight-decay 0.1" if style == "constant" else f" {ends}"
    expected = [0.02 + 0.08 * share(t / ITERATIONS) for t in range(ITERATIONS)]
    assert curve(flags, "weight_decay") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "flags, part",
    [
        (
            "--lr-decay-style WSD --lr-warmup-iters 4 --lr-wsd-decay-iters 37",
            "--lr-wsd-decay-iters 37: must be at least 1 and at most 36",
        ),
        (
            "--weight-decay-incr-style linear --start-weight-decay 0.1 --end-weight-decay 0.02",
            "--end-weight-decay 0.02",
        ),
        ("--lr-warmup-init 1e-2", "--lr-warmup-init 0.01: must be at most --lr 0.008"),
        ("--lr-decay-style inverse-square-root", "needs a warm-up"),
        ("--optimizer sgd --use-distributed-optimizer", "adam's state alone"),
    ],
)
def test_refused(flags, part):
    with pytest.raises(ConfigError) as caught:
        parse_args([*BASE, f"--train-iters={ITERATIONS}", *flags.split()])
    assert len(caught.value.problems) == 1
    assert part in caught.value.problems[0]
