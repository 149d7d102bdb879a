"""Whether runs may be compared: they differ in what the grid says, and in nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import yaml

from fixedcode_megatron.comparison.grid import Grid
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.jobs.job import Job, changed_settings
from fixedcode_megatron.training.metrics_file import History

OF_THE_LAUNCH = frozenset(
    "run_dir save load exit_interval exit_duration_in_mins exit_signal_handler tensorboard_dir "
    "wandb_project wandb_exp_name wandb_entity distributed_timeout_minutes hang_timeout_minutes "
    "distributed_backend save_interval keep_last_checkpoints async_save verify_integrity "
    "exit_on_missing_checkpoint data_cache_path".split()
)
"""Settings of how a run was started and kept, which its figures do not depend on."""

_DATA = frozenset(
    "seed seq_length global_batch_size rampup_batch_size train_iters train_samples vocab_size "
    "iterations_to_skip".split()
)
_WEIGHTS_FROM = {"seed", "pretrained_checkpoint"}
_WEIGHTS = ("layers", "head")  # everything but the input


def refuse_foreign_settings(jobs: Sequence[Job]) -> None:
    """Refuse runs whose folders were trained with other settings than the grid's.

    Raises
    ------
    UserError
        Naming each run and flag, with both values.
    """
    problems = []
    for job in jobs:
        if changed := changed_settings(job, OF_THE_LAUNCH):
            problems.append(
                f"{job.folder} was trained with other settings than the grid says "
                f"({'; '.join(changed)}): put them into the grid, or delete that folder to train "
                "it anew"
            )
    if problems:
        raise UserError("\n".join(problems))


def differing_settings(jobs: Sequence[Job]) -> set[str]:
    """Names of the settings in which the jobs' resolved configurations differ."""
    configs: list[dict[str, Any]] = [yaml.safe_load(job.cfg.to_yaml()) for job in jobs]
    return {
        name
        for config in configs
        for name, value in config.items()
        if name not in OF_THE_LAUNCH and value != configs[0][name]
    }


def groups(grid: Grid, but: str) -> list[list[str]]:
    """Names of the runs that differ in one axis alone."""
    found: dict[tuple[str, ...], list[str]] = {}
    for cell in grid.cells:
        key = tuple(label for axis, label in cell.labels.items() if axis != but)
        found.setdefault(key, []).append(cell.name)
    return list(found.values())


def check_matched(
    grid: Grid,
    jobs: Mapping[str, Job],
    histories: Mapping[str, History],
    weights: Mapping[str, dict[str, dict[str, Any]] | None],
) -> dict[str, str]:
    """Refuse to compare runs that read other samples or started with other weights.

    What the compared axis changes on purpose is left out: data where it changes the data's flags,
    weights where it changes the model, the seed or the checkpoint to start with.

    Parameters
    ----------
    jobs, histories, weights
        By name of the run; those that are not there yet are left out.

    Returns
    -------
    dict
        ``{"data": sentence, "weights": sentence}``: what was found.

    Raises
    ------
    UserError
        Naming the runs.
    """
    told = {}
    changed = set()
    for names in groups(grid, grid.compare):
        changed |= differing_settings([jobs[name] for name in names if name in jobs])
    data_may_differ = changed & (_names("data") | _DATA)
    weights_may_differ = changed & (_names("model", "transformer") | _WEIGHTS_FROM)
    for names in groups(grid, grid.compare):
        present = [name for name in names if name in histories]
        for name in present[1:]:
            if not data_may_differ:
                _same_data(present[0], name, histories)
            if not weights_may_differ:
                _same_weights(present[0], name, weights)
    told["data"] = (
        f"The compared runs read other data, as the grid says ({_flags(data_may_differ)})."
        if data_may_differ
        else "The compared runs of each seed read the same samples in the same order (equal "
        "checksums at every log line)."
    )
    told["weights"] = (
        f"They started with other weights, as the grid says ({_flags(weights_may_differ)})."
        if weights_may_differ
        else "They started with the same weights in everything but the input (equal checksums of "
        "layers and head)."
    )
    return told


def _names(*sections: str) -> set[str]:
    from fixedcode_megatron.config.tree import OPTIONS

    return {name for name, opt in OPTIONS.items() if opt.sections[0] in sections}


def _flags(names: set[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def checksums(history: History) -> dict[int, int]:
    """Sum of the CRC-32 of all samples read up to each log line, by iteration.

    A run that was interrupted has more lines than one that was not; the sums at common iterations
    are the same.
    """
    sums = accumulate(row["data checksum"] for row in history.train)
    return {row["iteration"]: total for row, total in zip(history.train, sums, strict=True)}


def _same_data(one: str, other: str, histories: Mapping[str, History]) -> None:
    a, b = checksums(histories[one]), checksums(histories[other])
    for iteration in sorted(a.keys() & b.keys()):
        if a[iteration] != b[iteration]:
            raise UserError(
                f"{one} and {other} have not read the same samples: their data checksums differ at "
                f"iteration {iteration} ({a[iteration]}, {b[iteration]}); was the dataset written "
                "anew between them? Delete the older run and train it again"
            )


def _same_weights(
    one: str, other: str, weights: Mapping[str, dict[str, dict[str, Any]] | None]
) -> None:
    a, b = weights[one], weights[other]
    for name, found in ((one, a), (other, b)):
        if found is None:
            raise UserError(
                f"{name} has no record of the weights that it started with: it was started by an "
                "older release; delete its folder and train it again"
            )
    assert a is not None and b is not None
    for part in _WEIGHTS:
        if a[part]["checksum"] != b[part]["checksum"]:
            raise UserError(
                f"{one} and {other} started with other weights in the {part} (checksums "
                f"{a[part]['checksum']}, {b[part]['checksum']}): delete both and train them again "
                "with one release of this program"
            )
