"""Results as a table beside the papers', and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.utils import handle_non_serializable

from fixedcode_megatron.data.files import write_text_whole
from fixedcode_megatron.evaluation.suites import FRACTIONS, SUITES, Suite

# What of the harness's results is kept; the rest says how this machine is set up.
_KEPT = ("results", "groups", "versions", "n-shot", "higher_is_better", "n-samples")


def table(results: Mapping[str, Any], suite: str | None, wanted: Sequence[str]) -> str:
    """One row for each task's metric, with the published results that belong to it.

    Parameters
    ----------
    results
        As the harness returns them.
    wanted
        What was asked for; of a suite's groups, such as MMLU, the parts are left out.
    """
    chosen = SUITES.get(suite or "")
    names = [name for name in results["results"] if chosen is None or name in wanted]
    columns = [f"their {name}" for name in chosen.columns] if chosen else []
    rows = [["task", "metric", "this model", "+-", *columns]]
    for name in names:
        for metric, value, error in _metrics(results["results"][name], chosen, name):
            theirs = chosen.row(name) if chosen else ()
            rows.append([name, *_cells(metric, value, error), *theirs])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    lines = [line.rstrip() for line in lines]
    return "\n".join([*lines, *([chosen.note] if chosen and chosen.note else [])])


def _metrics(
    found: Mapping[str, Any], suite: Suite | None, task: str
) -> list[tuple[str, Any, Any]]:
    """Metric, value and standard error; the paper's metric alone where there is one."""
    wanted = suite.metrics.get(task) if suite else None
    rows = []
    for key, value in found.items():
        metric, _, filtered = key.partition(",")
        if not filtered or metric.endswith("_stderr") or wanted not in (None, metric):
            continue
        error = found.get(f"{metric}_stderr,{filtered}")
        rows.append((metric if filtered == "none" else f"{metric} ({filtered})", value, error))
    return rows


def _cells(metric: str, value: Any, error: Any) -> list[str]:
    return [metric, _shown(metric, value), _shown(metric, error)]


def _shown(metric: str, value: Any) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{100 * value:.2f}" if metric.split()[0] in FRACTIONS else f"{value:.4g}"


def write_results(
    path: Path, results: Mapping[str, Any], model: Mapping[str, Any], suite: str | None
) -> None:
    """Everything the harness measured, what was measured, and what was published, as JSON."""
    content: dict[str, Any] = {"model": dict(model)}
    content |= {name: results[name] for name in _KEPT if name in results}
    if suite is not None:
        chosen = SUITES[suite]
        content["published"] = {
            "by": suite,
            "models": chosen.columns,
            "results": chosen.published,
            "note": chosen.note,
        }
    write_text_whole(path, json.dumps(content, indent=2, default=handle_non_serializable) + "\n")
