"""No setting is accepted that does nothing without a word."""

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
        ("--cuda-graph-impl local", "CUDA graphs"),
        ("--decoupled-lr 1e-2", "--lr"),
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
    ],
)
def test_noticed(flags, word):
    notices = parse_args([*MINIMAL, *flags.split()]).notices
    assert [line for line in notices if "has no effect" in line and word in line], notices


def test_a_plain_run_has_nothing_to_notice():
    assert parse_args(MINIMAL).notices == []


def test_gradients_are_checked_for_nan_as_in_megatron_lm():
    assert parse_args(MINIMAL).training.check_for_nan_in_loss_and_grad
    off = parse_args([*MINIMAL, "--no-check-for-nan-in-loss-and-grad"])
    assert not off.training.check_for_nan_in_loss_and_grad
