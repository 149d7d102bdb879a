"""Validation of the whole tree: each check appends a line with flag, value and a way out."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from fixedcode_megatron.config import (
    checks_data,
    checks_effect,
    checks_graphs,
    checks_layout,
    checks_machine,
    checks_model,
    checks_muon,
    checks_run,
    checks_schedule,
    checks_training,
    derive,
    megatron_fields,
)

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig


def validate(cfg: RunConfig, world_size: int, *, complete: bool = True) -> list[str]:
    """Fill in derived values and return every problem found.

    Parameters
    ----------
    cfg
        The tree with flags and preset applied; changed in place.
    world_size
        Number of ranks of the run.
    complete
        Also report what is missing (off while other flags were not understood: the missing value
        may be one of those).
    """
    planning = cfg.runtime.count_parameters or cfg.runtime.print_config
    if planning:  # of a run on any number of ranks
        copies = max(1, world_size // max(1, derive.model_parallel_size(cfg)))
        world_size = derive.model_parallel_size(cfg) * copies
    problems = checks_model.positive(cfg)
    if problems:
        return problems  # sizes below 1 make nonsense of all that follows
    missing = checks_model.missing(cfg)
    if missing:
        return missing if complete else []
    derive.fill(cfg, world_size)
    problems += checks_layout.layout(cfg, world_size)
    problems += checks_layout.recompute(cfg)
    problems += checks_model.widths(cfg)
    problems += checks_model.interface(cfg)
    problems += checks_machine.check(cfg)
    problems += checks_effect.check(cfg) + checks_graphs.check(cfg)
    problems += checks_training.batches(cfg, world_size)
    problems += checks_schedule.schedule(cfg)
    problems += checks_muon.check(cfg)
    problems += checks_training.ranges(cfg)
    problems += checks_training.checkpoints_and_logs(cfg)
    problems += checks_data.check(cfg)
    problems += checks_run.profiling(cfg, world_size) + checks_run.deterministic(cfg)
    if complete and not planning:
        problems += checks_training.missing(cfg) + checks_data.missing(cfg)
    return problems or _megatrons_own_checks(cfg) or checks_layout.uniform_recompute(cfg)


def _megatrons_own_checks(cfg: RunConfig) -> list[str]:
    """Build megatron-core's objects: they refuse more combinations than are worth repeating."""
    problems = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for build in (
            megatron_fields.transformer_config,
            megatron_fields.ddp_config,
            megatron_fields.optimizer_config,
        ):
            try:
                build(cfg)
            except (ValueError, AssertionError, RuntimeError, ImportError) as error:
                problems.append(
                    f"megatron-core refuses the settings: {' '.join(str(error).split())}"
                )
    return problems
