"""Communication inside matrix products: what Transformer Engine's real function is called with."""

import re
import sys

import pytest

from fixedcode_megatron.config import parse_args
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.tp_overlap import read_settings
from tests.transformer_engine.test_layers import WHEEL, run_without_the_compiled_part

SHAPE = (
    "--config paper_b_1.7b --tensor-model-parallel-size 2 --sequence-parallel "
    "--context-parallel-size 2 --micro-batch-size 3 --global-batch-size 3 --seq-length 256 "
    "--cp-comm-type p2p"
)


@pytest.mark.skipif(WHEEL is None, reason="transformer-engine's wheel is not in .venv")
def test_buffers_fit_the_run(tmp_path):
    settings = tmp_path / "overlap.yaml"
    settings.write_text("qkv_fprop: {method: ring_exchange, num_sm: 1}\n")
    common = f"{SHAPE} --tp-comm-overlap --tp-comm-overlap-cfg {settings} --precision"
    modes = {
        "bf16": ["NONE"],
        "fp8_current": ["FP8"],
        "fp8_current --first-last-layers-bf16": ["FP8", "NONE"],
    }
    runs = [f"{common} {precision}" for precision in modes]
    error, calls = run_without_the_compiled_part("overlap_call", *runs)
    assert error.startswith("--tp-comm-overlap: ") and error.endswith("; or leave it out")
    for call, wanted in zip(calls, modes.values(), strict=True):
        # 256 positions, half of them on each context-parallel rank, 3 sequences; width 2048.
        assert call["shape"] == "[384, 2048]" and call["tp_size"] == "2"
        assert re.findall(r"\.(FP8|NONE)\b", call["quantization_modes"]) == wanted
        assert call["dtype"] == "torch.bfloat16" and call["bootstrap_backend"] == "nccl"
        assert call["ub_cfgs"] == "{'qkv_fprop': {'method': 'ring_exchange', 'num_sm': 1}}"


def test_nothing_is_asked_for_without_the_flag():
    from fixedcode_megatron import tp_overlap

    tp_overlap.initialize(parse_args([*SHAPE.split(), "--print-config"], world_size=4))
    assert "transformer_engine" not in sys.modules


@pytest.mark.parametrize("text", ["[1, 2]", "qkv_fprop: 3", "a: b: c"])
def test_files_that_hold_no_settings_are_refused(text, tmp_path):
    path = tmp_path / "overlap.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=f"--tp-comm-overlap-cfg {path}: "):
        read_settings(str(path))
    with pytest.raises(UserError, match="cannot be read"):
        read_settings(str(tmp_path / "absent.yaml"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--tp-comm-overlap --precision fp32", "--tp-comm-overlap: needs --bf16"),
        ("--tp-comm-overlap-cfg a.yaml", "--tp-comm-overlap-cfg: has no effect without"),
    ],
)
def test_contradictions(flags, message):
    with pytest.raises(UserError, match=message):
        parse_args([*SHAPE.split(), "--data-path", "unused", *flags.split()], world_size=4)
