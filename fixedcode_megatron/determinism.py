"""What `--deterministic-mode` sets besides megatron-core's own switch."""

from __future__ import annotations

import os

import torch

ENVIRONMENT: dict[str, tuple[str, ...]] = {
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"),
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("0",),
    "NCCL_ALGO": ("Ring", "Tree", "CollnetDirect", "CollnetChain", "^NVLS"),
}
"""Variables and the values that are deterministic; the first is set where there is none."""


def enforce() -> None:
    """Have torch, cuBLAS, cuDNN, Transformer Engine and NCCL compute the same bits every time.

    To be called before CUDA and NCCL start. Operations of torch's that cannot raise an error.
    """
    for name, values in ENVIRONMENT.items():
        os.environ.setdefault(name, values[0])
    torch.use_deterministic_algorithms(True)
    # Otherwise every new tensor is filled, which only helps programs that read what they never set.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
