"""What each run found out, and the arithmetic over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from fixedcode_megatron.comparison.activations import Spectrum
from fixedcode_megatron.comparison.grid import SEED, Cell, Grid
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.jobs.job import Job
from fixedcode_megatron.training.initial_weights import read_initial_weights
from fixedcode_megatron.training.metrics_file import METRICS_FILE, History, read_history

EVALUATION_FILE = "evaluation.json"
MEMORY = ("parameters", "gradients", "optimizer", "peak")


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One complete run.

    Attributes
    ----------
    variant, setting, seed
        Its values of the compared axis, of the other axes together, and of the seed.
    weights
        What it started with, by part.
    spectra
        Of its last checkpoint; or why there are none.
    evaluation
        What `tools/evaluate_model.py --output` wrote to its folder, if it did.
    """

    name: str
    variant: str
    setting: str
    seed: str
    command: str
    history: History
    weights: dict[str, dict[str, Any]] | None
    spectra: list[Spectrum] | str = ""
    evaluation: dict[str, Any] | None = None

    @property
    def loss(self) -> float:
        """Validation loss at the end, nats per token."""
        return float(self.history.validation[-1]["lm loss"])

    @property
    def perplexity(self) -> float:
        """exp of the loss."""
        return math.exp(self.loss)

    @property
    def parameters(self) -> int | None:
        """Trainable parameters of the model; None where the run has not written them down."""
        return sum(part["parameters"] for part in self.weights.values()) if self.weights else None

    @property
    def input_parameters(self) -> int | None:
        """Those of the input interface."""
        return self.weights["input"]["parameters"] if self.weights else None

    def memory(self, part: str) -> int | None:
        """Most bytes of a category in any log line, on the rank with most."""
        found = [row.get(f"memory {part} (bytes)") for row in self.history.train]
        return max((value for value in found if value is not None), default=None)

    def gradient_norm(self, part: str) -> float | None:
        """Median over the log lines; None where the part owns no parameter."""
        found = [row.get(f"grad norm {part}") for row in self.history.train]
        values = [value for value in found if value is not None]
        return median(values) if values else None

    def progress(self, iterations: Sequence[float]) -> tuple[list[float], list[float]]:
        """Tokens read and seconds trained after these iterations (between log lines: in between).

        Evaluations and checkpoints do not count as training.
        """
        rows = self.history.train
        done = [0, *(row["iteration"] for row in rows)]
        tokens = [0, *(row["consumed tokens"] for row in rows)]
        each = [row["elapsed time per iteration (ms)"] / 1e3 for row in rows]
        seconds = np.cumsum([0.0, *(s * n for s, n in zip(each, np.diff(done), strict=True))])
        return (
            np.interp(iterations, done, tokens).tolist(),
            np.interp(iterations, done, seconds).tolist(),
        )


def read_result(grid: Grid, cell: Cell, job: Job) -> RunResult:
    """Gather what a complete run left in its folder; `spectra` stay empty.

    Raises
    ------
    UserError
        If an evaluation of the run's gave no number.
    """
    labels, history = cell.labels, read_history(job.folder / METRICS_FILE)
    for row in history.validation:
        if row["lm loss"] is None:
            raise UserError(
                f"{job.folder}: its validation loss is not a number from iteration "
                f"{row['iteration']} on; leave the run out of the grid, or give other settings"
            )
    return RunResult(
        name=cell.name,
        variant=labels[grid.compare],
        setting=", ".join(labels[axis] for axis in grid.settings),
        seed=labels.get(SEED, f"seed {job.cfg.training.seed}").removeprefix("seed "),
        command=job.command_text,
        history=history,
        weights=read_initial_weights(job.folder),
        evaluation=_evaluation(job.folder / EVALUATION_FILE),
    )


def _evaluation(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["results"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not what tools/evaluate_model.py --output writes: write it anew, or delete "
            "it"
        ) from error
    return content


@dataclass(frozen=True)
class Group:
    """The runs of one variant in one setting: its seeds."""

    setting: str
    variant: str
    runs: list[RunResult]

    @property
    def perplexities(self) -> list[float]:
        return [run.perplexity for run in self.runs]

    @property
    def mean_perplexity(self) -> float:
        return mean(self.perplexities)

    @property
    def seed_range(self) -> float | None:
        """(max - min) / mean of the perplexities, as in paper A; None of a single seed."""
        if len(self.runs) < 2:
            return None
        values = self.perplexities
        return (max(values) - min(values)) / mean(values)


def differences(reference: Group, other: Group) -> list[float]:
    """Loss of `other` less that of `reference`, nats, for each seed that both have.

    Runs of one seed read the same samples, so chance that the data brings is in both.
    """
    losses = {run.seed: run.loss for run in reference.runs}
    return [run.loss - losses[run.seed] for run in other.runs if run.seed in losses]


def grouped(grid: Grid, results: Sequence[RunResult]) -> dict[str, list[Group]]:
    """``{setting: groups}``, both in the grid's order."""
    found: dict[str, list[Group]] = {}
    for setting in dict.fromkeys(run.setting for run in results):
        for variant in grid.axes[grid.compare]:
            runs = [r for r in results if (r.setting, r.variant) == (setting, variant)]
            if runs:
                found.setdefault(setting, []).append(Group(setting, variant, runs))
    return found


def sentence(reference: Group, other: Group) -> str:
    """What the numbers say of a variant against the reference, and no more."""
    where = f"{other.setting}: " if other.setting else ""
    difference = other.mean_perplexity / reference.mean_perplexity - 1
    side = "higher" if difference > 0 else "lower"
    said = (
        f"{where}the validation perplexity of {other.variant} is {abs(difference):.2%} {side} than "
        f"that of {reference.variant}"
    )
    ranges = [group.seed_range for group in (reference, other)]
    if None in ranges:
        return f"{said}, with one seed: how much of that is chance, one seed cannot tell."
    widest = max(r for r in ranges if r is not None)
    seeds = f"{min(len(g.runs) for g in (reference, other))} seeds"
    if abs(difference) <= widest:
        return (
            f"{said}, and {seeds} of one interface differ by up to {widest:.2%}: these runs do not "
            "tell the two apart."
        )
    return (
        f"{said}, more than the {widest:.2%} by which {seeds} of one interface differ: here "
        f"{other.variant} is {'worse' if difference > 0 else 'better'}; other data, sizes or "
        "budgets were not tried."
    )
