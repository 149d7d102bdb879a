"""The backends on a real GPU: each of the package's own checks, on each backend."""

import pytest
import torch

from fixedcode_kernels import check, use_backend
from fixedcode_kernels.dispatch import PREFERENCE, _unavailable

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("name", check.CHECKS)
@pytest.mark.parametrize("backend", PREFERENCE["cuda"])
def test_backend(backend, name):
    reason = _unavailable(backend, "cuda")
    if reason:
        pytest.skip(f"{backend}: {reason}")
    with use_backend(backend):
        check.CHECKS[name](torch.device("cuda"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_ids_on_a_device_that_is_not_current():
    torch.cuda.set_device(0)
    check.check_random_calls(torch.device("cuda:1"), count=6)
    assert torch.cuda.current_device() == 0
