"""A training run is the same, bit for bit, whichever kernel computes the input."""

from __future__ import annotations

import pytest

from tests.distributed.cases import run_main
from tests.distributed.conftest import Run
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed


def run_on_backend(backend: str, argv: list[str]) -> int:
    import fixedcode_kernels

    with fixedcode_kernels.use_backend(backend):
        return run_main(argv)


@pytest.mark.parametrize("precision", ["", "--bf16"])
def test_losses_do_not_depend_on_the_backend(base_flags, tmp_path, precision):
    flags = [*base_flags, "--input-interface", "gf2", *precision.split(), "--exit-interval", "5"]
    losses = {}
    for backend in ("reference", "table", "cpu"):
        folder = tmp_path / backend
        statuses = run_ranks(1, run_on_backend, backend, [*flags, "--run-dir", str(folder)])
        assert statuses == [0]
        losses[backend] = Run(folder, 0).losses
    assert len(losses["reference"]) == 5
    assert losses["table"] == losses["reference"]
    assert losses["cpu"] == losses["reference"]
