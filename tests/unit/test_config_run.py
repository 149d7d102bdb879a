"""Profiling and deterministic mode: what is refused, what is noticed."""

import pytest

from fixedcode_megatron.config import parse_args
from fixedcode_megatron.config.problems import ConfigError
from tests.unit.test_config_effect import MINIMAL


@pytest.mark.parametrize(
    "flags, words",
    [
        ("--profile --profile-step-start 5 --profile-step-end 5", ["5", "must be larger"]),
        ("--profile --profile-ranks 0 7", ["--profile-ranks 7", "1 ranks"]),
        ("--record-memory-history", ["--record-memory-history", "GPU"]),
        ("--memory-snapshot-path a/b.pickle", ["a/b.pickle", "name of a file"]),
        ("--hang-timeout-minutes 0", ["--hang-timeout-minutes 0"]),
        ("--iterations-to-skip 3 0", ["--iterations-to-skip 0", "from 1"]),
        ("--max-consecutive-skips 0", ["--max-consecutive-skips 0", "at least 1"]),
        (
            "--deterministic-mode --cross-entropy-loss-fusion",
            ["--cross-entropy-loss-fusion with --deterministic-mode"],
        ),
    ],
)
def test_refused(flags, words):
    with pytest.raises(ConfigError) as error:
        parse_args([*MINIMAL, *flags.split()])
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("flag", ["--profile", "--nvtx-ranges"])
def test_what_only_gpus_have_is_noticed(flag):
    [notice] = parse_args([*MINIMAL, flag]).notices
    assert f"{flag} has no effect" in notice


@pytest.mark.parametrize(
    "name, value", [("NCCL_ALGO", "NVLS"), ("CUBLAS_WORKSPACE_CONFIG", ":0:0")]
)
def test_an_environment_that_contradicts_deterministic_mode(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert parse_args(MINIMAL).notices == []
    with pytest.raises(ConfigError, match=f"{name}={value} with --deterministic-mode"):
        parse_args([*MINIMAL, "--deterministic-mode"])
