"""The snippet of docs/integrations.md for Megatron-LM trains in its loop."""

from __future__ import annotations

import math

import pytest
import torch

from fixedcode_megatron.codes import TokenCode
from tests.distributed import stock_checkpoints, stock_loops
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed


@pytest.mark.skipif(
    not stock_checkpoints.HAS_MEGATRON_LM,
    reason="wheels of megatron-core hold megatron.training from 0.18 on",
)
def test_megatron_lm(tmp_path):
    flags = ["--tensor-model-parallel-size", "2"]
    ranks = run_ranks(2, stock_loops.megatron_lm, flags, output=tmp_path)
    assert ranks[0]["losses"] == ranks[1]["losses"]
    first, *_, last = ranks[0]["losses"]
    assert len(ranks[0]["losses"]) == 4  # two micro-batches in each of two iterations
    assert abs(first - math.log(512)) < 0.5 and last < first
    for found in ranks:
        assert all(found["changed"].values()) and found["changed"]
        assert not [name for name in found["changed"] if "embedding" in name]
        expected = TokenCode.binary(512).embed(found["tokens"].t(), 72)
        assert torch.equal(found["input"], expected)
    log = (tmp_path / "rank1.log").read_text()  # the last rank reports
    assert " iteration        2/       2 " in log
