"""Benchmark results of the compared runs, beside those that paper B published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from fixedcode_megatron.comparison.results import Group
from fixedcode_megatron.comparison.tables import NONE, Table
from fixedcode_megatron.evaluation.suites import FRACTIONS, SUITES


def benchmarks(groups: Mapping[str, Sequence[Group]]) -> Table | None:
    """A row for each task of paper B, a column for each variant; None without evaluations.

    Means over the seeds that were evaluated; how many they are stands in the column's name.
    """
    suite = SUITES["paper-b"]
    columns: dict[str, list[Mapping[str, Any]]] = {}
    for group in (group for members in groups.values() for group in members):
        found = [run.evaluation["results"] for run in group.runs if run.evaluation]
        if found:
            title = f"{group.setting}: {group.variant}" if group.setting else group.variant
            columns[f"{title} ({len(found)})"] = found
    if not columns:
        return None
    rows = []
    for task, metric in suite.metrics.items():
        cells = [_cell(found, task, metric) for found in columns.values()]
        rows.append((task, metric, *cells, *suite.row(task)))
    header = ("task", "metric", *columns, *(f"paper B: {name}" for name in suite.columns))
    note = (
        "In brackets: seeds evaluated, of which the mean is shown. Accuracies in percent. "
        f"{suite.note[0].upper()}{suite.note[1:]}."
    )
    return Table("benchmarks", "Benchmarks", header, rows, note)


def _cell(found: Sequence[Mapping[str, Any]], task: str, metric: str) -> str:
    values = [results[task].get(f"{metric},none") for results in found if task in results]
    numbers = [value for value in values if isinstance(value, int | float)]
    if not numbers:
        return NONE
    return f"{100 * mean(numbers):.2f}" if metric in FRACTIONS else f"{mean(numbers):.2f}"
