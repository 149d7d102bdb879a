"""No setting is accepted that does nothing without a word."""

import importlib.util

import pytest

from fixedcode_megatron.config import parse_args
from fixedcode_megatron.config.problems import ConfigError

MINIMAL = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 256 --lr 1e-3 "
    "--train-iters 10 --data-path x --device cpu"
).split()


@pytest.mark.parametrize(
    "flags, word",
    [
        ("--apply-residual-connection-post-layernorm", "before the norm"),
        ("--decoupled-lr 1e-2", "--lr"),
        ("--decoupled-lr 0", "--lr"),
        ("--optimizer sgd --save x", "--no-save-optim"),
        ("--log-max-attention-logit", "transformer_engine"),
        ("--check-for-nan-in-grad --fp16", "loss scale"),
        ("--overlap-param-gather-with-optimizer-step", "--overlap-param-gather"),
    ],
)
def test_refused(flags, word):
    with pytest.raises(ConfigError) as caught:
        parse_args([*MINIMAL, *flags.split()])
    assert flags.split()[0] in str(caught.value)
    assert word in str(caught.value)


@pytest.mark.parametrize(
    "flags, word",
    [
        ("--reset-position-ids", "rotary"),
        ("--bf16 --fp32-residual-connection", "first layer"),
        ("--memory-efficient-layer-norm", "torch-native"),
        ("--recompute-granularity selective --recompute-modules layernorm", "linear layers"),
        ("--cp-comm-type a2a", "torch-native"),
        ("--muon-momentum 0.9", "--optimizer adam"),
    ],
)
def test_noticed(flags, word):
    notices = parse_args([*MINIMAL, *flags.split()]).notices
    assert [line for line in notices if "has no effect" in line and word in line], notices


def test_muon_names_the_package_that_it_lacks(monkeypatch):
    """megatron-core 0.16 calls an older release of it; the one for 0.19 needs Python 3.12."""
    module = "megatron.core.optimizer.emerging_optimizers"
    if importlib.util.find_spec(module):
        monkeypatch.setattr(f"{module}.HAVE_EMERGING_OPTIMIZERS", False)
    with pytest.raises(ConfigError) as caught:
        parse_args([*MINIMAL, "--optimizer", "muon"])
    (problem,) = caught.value.problems
    assert problem.startswith("--optimizer muon: ") and "emerging-optimizers" in problem
    assert ("Python 3.12" if importlib.util.find_spec(module) else "0.19") in problem


def test_a_plain_run_has_nothing_to_notice():
    assert parse_args(MINIMAL).notices == []


def test_gradients_are_checked_for_nan_as_in_megatron_lm():
    assert parse_args(MINIMAL).training.check_for_nan_in_loss_and_grad
    off = parse_args([*MINIMAL, "--no-check-for-nan-in-loss-and-grad"])
    assert not off.training.check_for_nan_in_loss_and_grad
