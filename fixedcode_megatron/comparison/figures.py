"""The report's curves: a line for each variant, a band over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from fixedcode_megatron.comparison.results import Group, RunResult
from fixedcode_megatron.comparison.tables import Table
from fixedcode_megatron.training.gradient_norms import PARTS

_MILLIONS = "tokens (millions)"


@dataclass(frozen=True)
class Series:
    """One variant: mean, least and largest value over the seeds at each place."""

    name: str
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Figure:
    """A figure and the numbers behind it.

    Attributes
    ----------
    ticks
        Names of x = 0, 1, ...; empty where x is a number.
    log_y
        Whether y is shown on a logarithmic scale.
    """

    key: str
    title: str
    x_label: str
    y_label: str
    series: list[Series]
    ticks: tuple[str, ...] = ()
    log_y: bool = False

    @property
    def table(self) -> Table:
        """Every point, in the precision that the page shows."""
        rows = []
        for line in self.series:
            for x, *values in zip(line.x, line.mean, line.low, line.high, strict=True):
                place = self.ticks[round(x)] if self.ticks else number(x)
                rows.append((line.name, place, *(f"{value:.4f}" for value in values)))
        return Table(
            self.key,
            self.title,
            ("variant", self.x_label, f"{self.y_label}, mean", "least", "largest"),
            rows,
        )


def number(value: float) -> str:
    """A place on a numeric axis, as page and tables show it."""
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def figures(groups: Mapping[str, Sequence[Group]]) -> list[Figure]:
    """All figures, setting by setting."""
    found: list[Figure] = []
    for index, (setting, members) in enumerate(groups.items(), start=1):
        where = f" ({setting})" if setting else ""
        suffix = f"_{index}" if len(groups) > 1 else ""
        found += [_loss_figure(members, position, where, suffix) for position in (0, 1)]
        for part in PARTS:
            lines = [line for group in members if (line := _gradient(group, part)) is not None]
            title = f"Gradient norm of the {part}{where}"
            key = f"gradient_{part}{suffix}"
            if lines:
                found.append(Figure(key, title, _MILLIONS, "gradient norm", lines, log_y=True))
        lines = [line for group in members if (line := _ranks(group)) is not None]
        if lines:
            count = max(len(line.x) for line in lines)
            ticks = ("input", *(f"layer {n}" for n in range(1, count)))
            title, key = f"Effective rank of the hidden states{where}", f"effective_rank{suffix}"
            found.append(Figure(key, title, "after", "effective rank", lines, ticks, True))
    return found


def _loss_figure(members: Sequence[Group], position: int, where: str, suffix: str) -> Figure:
    """Validation loss against tokens (`position` 0) or time (1)."""
    against, label = (("tokens", _MILLIONS), ("time", "minutes"))[position]
    return Figure(
        f"loss_{against}{suffix}",
        f"Validation loss against {against}{where}",
        label,
        "loss (nats)",
        [_loss(group, position) for group in members],
    )


def _loss(group: Group, position: int) -> Series:
    values = [
        {row["iteration"]: row["lm loss"] for row in run.history.validation} for run in group.runs
    ]
    iterations = _common(values)
    scale = (1e6, 60.0)[position]
    return _series(
        group,
        iterations,
        values,
        lambda run: [x / scale for x in run.progress(iterations)[position]],
    )


def _gradient(group: Group, part: str) -> Series | None:
    values = [
        {
            row["iteration"]: row[f"grad norm {part}"]
            for row in run.history.train
            if row.get(f"grad norm {part}") is not None
        }
        for run in group.runs
    ]
    iterations = _common(values)
    if not iterations:
        return None
    return _series(
        group, iterations, values, lambda run: [x / 1e6 for x in run.progress(iterations)[0]]
    )


def _ranks(group: Group) -> Series | None:
    measured = [
        {float(i): s.effective_rank for i, s in enumerate(run.spectra)}
        for run in group.runs
        if isinstance(run.spectra, list)
    ]
    places = _common(measured)
    if not places:
        return None
    return _series(group, places, measured, lambda _run: list(map(float, places)))


def _common(values: Sequence[Mapping[float, float]]) -> list[float]:
    """Places that every seed has a value at."""
    if not values:
        return []
    return sorted(set.intersection(*(set(v) for v in values)))


def _series(
    group: Group,
    places: Sequence[float],
    values: Sequence[Mapping[float, float]],
    x_of: Callable[[RunResult], list[float]],
) -> Series:
    columns = [[seed[place] for seed in values] for place in places]
    x = [mean(column) for column in zip(*(x_of(run) for run in group.runs), strict=True)]
    return Series(
        group.variant,
        x,
        [mean(column) for column in columns],
        [min(column) for column in columns],
        [max(column) for column in columns],
    )
