"""Parameter counts of a configuration, from the real model built on the meta device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fixedcode_megatron.model.gpt import Vocabulary, build_model

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Trainable parameters by part of the model.

    Attributes
    ----------
    input
        Input interface (0 where it is computed).
    layers
        Transformer layers and the final norm.
    head
        Output projection (0 where it is tied to the table).
    """

    input: int
    layers: int
    head: int

    @property
    def total(self) -> int:
        """All trainable parameters."""
        return self.input + self.layers + self.head

    def __str__(self) -> str:
        rows = [("input interface", self.input), ("layers", self.layers), ("head", self.head)]
        lines = [f"{name:<22}{count:>16,}" for name, count in [*rows, ("total", self.total)]]
        return "trainable parameters\n" + "\n".join(lines)


def count_parameters(cfg: RunConfig, vocabulary: Vocabulary) -> ParameterCount:
    """Count the whole model's parameters; the process groups must be those of one rank."""
    with torch.device("meta"):
        models, _, _ = build_model(
            cfg, vocabulary, use_cpu_initialization=True, perform_initialization=False
        )
    counts = dict(input=0, layers=0, head=0)
    parts = {"embedding": "input", "decoder": "layers", "output_layer": "head"}
    for model in models:
        for name, parameter in model.named_parameters():
            counts[parts[name.split(".")[0]]] += parameter.numel()
    return ParameterCount(**counts)
