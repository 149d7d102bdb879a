"""What the ranks of the linear cross-entropy tests do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fixedcode_megatron.model import linear_cross_entropy as module


def problem(*, tokens: int, vocabulary: int, width: int, logit_scale: float) -> dict[str, Tensor]:
    """Hidden states [s, 2, h], weight [V, h], labels and mask [2, s] in FP64, and an upstream."""
    generator = torch.Generator().manual_seed(5)
    normal = dict(generator=generator, dtype=torch.float64)
    return {
        "hidden": torch.randn(tokens // 2, 2, width, **normal) * logit_scale,
        "weight": torch.randn(vocabulary, width, **normal) / width**0.5,
        "labels": torch.randint(0, vocabulary, (2, tokens // 2), generator=generator),
        "mask": (torch.rand(2, tokens // 2, generator=generator) < 0.7).double() * 1.5,
    }


def expected(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Loss and gradients by torch's own cross entropy on whole logits, all in FP64."""
    hidden = values["hidden"].clone().requires_grad_()
    weight = values["weight"].clone().requires_grad_()
    losses = torch.nn.functional.cross_entropy(
        (hidden @ weight.t()).flatten(0, 1), values["labels"].t().flatten(), reduction="none"
    )
    loss = torch.dot(losses, values["mask"].t().flatten())
    (loss * 0.125).backward()
    return {"loss": loss.detach(), "hidden": hidden.grad, "weight": weight.grad}


def found(
    flags: list[str], shape: dict[str, Any], dtype: torch.dtype, chunk: int
) -> dict[str, Tensor]:
    """The same by this rank's part of the work, its gradients put together over the ranks."""
    from megatron.core import parallel_state

    from fixedcode_megatron import runtime
    from fixedcode_megatron.config import parse_args

    cfg = parse_args(flags)
    runtime.initialize(cfg)
    module._CHUNK_ELEMENTS = chunk
    group = parallel_state.get_tensor_model_parallel_group()
    size, rank = group.size(), group.rank()
    values = problem(**shape)
    hidden = values["hidden"].to(dtype)
    if cfg.transformer.sequence_parallel:
        hidden = hidden.chunk(size)[rank].clone()
    hidden.requires_grad_()
    weight = values["weight"].chunk(size)[rank].to(dtype).clone().requires_grad_()
    with LargestTensor() as largest:
        loss = module.linear_cross_entropy(
            hidden,
            weight,
            values["labels"],
            values["mask"],
            group=group,
            sequence_parallel=cfg.transformer.sequence_parallel,
        )
        (loss * 0.125).backward()
    return {
        "loss": loss.detach(),
        "hidden": hidden.grad,
        "weight": weight.grad,
        "largest": torch.tensor(largest.elements),
    }


class LargestTensor(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return result
