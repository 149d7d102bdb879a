"""An estimate beside the rehearsal of the same rank."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from fixedcode_megatron.config.derive import data_parallel_size
from fixedcode_megatron.planning.activations import peak_activations
from fixedcode_megatron.planning.communication import step_traffic
from fixedcode_megatron.planning.rank import rank_shape
from fixedcode_megatron.planning.rehearsal import rehearse
from fixedcode_megatron.planning.states import state_bytes

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig


def compare(cfg: RunConfig, world_size: int, rank: int) -> list[str]:
    """Lines of `what: estimate, rehearsal, equal or not`, for a short step of the layout.

    The step has as many micro-batches as the pipeline needs twice over; FP8 is left out, and the
    activations are those of the torch-native layers on a CPU, which is where the rehearsal runs.
    """
    cfg = copy.deepcopy(cfg)
    stages = cfg.transformer.pipeline_model_parallel_size
    copies = data_parallel_size(cfg, world_size)
    cfg.set("fp8", None)
    cfg.set("transformer_impl", "local")
    cfg.set("global_batch_size", 2 * stages * copies * cfg.training.micro_batch_size)
    per_stage = world_size // stages
    shape = rank_shape(cfg, world_size, rank // per_stage)
    replica = rank % per_stage // cfg.transformer.tensor_model_parallel_size
    estimate, found = state_bytes(shape, replica), rehearse(cfg, world_size=world_size, rank=rank)
    pairs = [
        ("parameter bytes", estimate.parameters, found.parameter_bytes),
        ("gradient bytes", estimate.gradients, found.gradient_bytes),
        ("optimizer bytes", estimate.optimizer, found.optimizer_bytes),
    ]
    lines = [f"{name:<24}{a:>18,}{b:>18,}  {_verdict(a == b)}" for name, a, b in pairs]
    expected, counted = step_traffic(shape), found.traffic
    for key in sorted(expected.calls | counted.calls):
        same = (expected.calls[key], expected.size[key]) == (counted.calls[key], counted.size[key])
        cells = [f"{t.calls[key]:,} / {t.size[key]:,}" for t in (expected, counted)]
        lines.append(f"{key!s:<24}{cells[0]:>18}{cells[1]:>18}  {_verdict(same)}")
    guess, peak = peak_activations(shape, fused=False), found.activation_bytes
    lines.append(f"{'activation bytes':<24}{guess:>18,}{peak:>18,}  {guess / peak - 1:+.1%}")
    return lines


def _verdict(same: bool) -> str:
    return "equal" if same else "DIFFERENT"
