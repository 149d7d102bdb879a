"""A model of the table-free class, split over the ranks that work on it together.

Each rank holds whole query groups and an equal share of the MLP, as Megatron's tensor parallelism
has it; input and head are whole everywhere, so that every rank has all logits, the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from fixedcode_megatron.errors import UserError

_DIVIDED = {
    "num_attention_heads": "--num-attention-heads",
    "num_key_value_heads": "--num-query-groups",
    "intermediate_size": "--ffn-hidden-size",
}
_SUMMED = ("attention.proj", "mlp.fc2")  # layers whose outputs are sums over the ranks


@dataclass(frozen=True)
class Share:
    """One rank's share of a model."""

    rank: int
    size: int

    def settings(self, config: dict[str, Any]) -> dict[str, Any]:
        """A model's configuration as that of one rank.

        Raises
        ------
        UserError
            If the model cannot be divided by so many ranks.
        """
        wrong = [f"{flag} {config[n]}" for n, flag in _DIVIDED.items() if config[n] % self.size]
        if wrong:
            raise UserError(
                f"{self.size} processes cannot share a model of {', '.join(wrong)}: start as many "
                "as divide that (torchrun --nproc-per-node)"
            )
        return config | {name: config[name] // self.size for name in _DIVIDED}

    def of(self, name: str, tensor: torch.Tensor, *, gated: bool) -> torch.Tensor:
        """This rank's part of a whole model's tensor, by its name in the table-free form."""
        module, _, parameter = name.rpartition(".")
        if module.endswith("attention.qkv"):
            return self._rows(tensor)
        if module.endswith("mlp.fc1"):
            halves = tensor.chunk(2) if gated else [tensor]
            return torch.cat([self._rows(half) for half in halves])
        if not module.endswith(_SUMMED):
            return tensor
        if parameter == "weight":
            return self._rows(tensor.T).T
        return tensor if self.rank == 0 else torch.zeros_like(tensor)  # a bias is added once

    def _rows(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.chunk(self.size)[self.rank]


def connect(model: torch.nn.Module) -> None:
    """Have the shares of all ranks of the default process group compute one model."""

    def summed(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(output)
        return output

    for name, module in model.named_modules():
        if name.endswith(_SUMMED):
            module.register_forward_hook(summed)
