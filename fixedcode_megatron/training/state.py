"""`TrainState`: everything about a run's progress that a checkpoint must bring back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(kw_only=True)
class TrainState:
    """Progress of a run; the one resumable object besides weights, optimizer and generators.

    Attributes
    ----------
    iteration
        Completed iterations.
    consumed_samples
        Training samples read, over all data-parallel ranks; the position in the data.
    consumed_tokens
        Training tokens read.
    skipped_iterations, nan_iterations
        Iterations without an update, and those whose loss or gradients were not finite.
    skips_in_a_row
        Iterations up to now whose update the guard left out, one after the other.
    recent_losses, recent_grad_norms
        What the guard measures spikes against, where it looks for them.
    optimizer_steps
        Updates that the optimizer's moments have seen; 0 after its state was left behind.
    floating_point_operations
        Model FLOPs spent on training, by the formula of `flops`.
    data_checksum
        Of the conversations of `--sft`; 0 elsewhere.
    """

    iteration: int = 0
    consumed_samples: int = 0
    consumed_tokens: int = 0
    skipped_iterations: int = 0
    nan_iterations: int = 0
    optimizer_steps: int = 0
    floating_point_operations: float = 0.0
    data_checksum: int = 0
    skips_in_a_row: int = 0
    recent_losses: list[float] = field(default_factory=list)
    recent_grad_norms: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return asdict(self)

    def load_dict(self, values: dict[str, Any]) -> None:
        """Take over the values of `to_dict`; fields that an older checkpoint lacks stay."""
        if "optimizer_steps" not in values:  # written before the field was there
            self.optimizer_steps = values["iteration"] - values["skipped_iterations"]
        known = {f.name for f in fields(self)}
        for name, value in values.items():
            if name in known:
                setattr(self, name, value)
