"""Draws the CSV file of the benchmark: one bar per figure, on a logarithmic axis."""

from __future__ import annotations

import csv
from pathlib import Path


def plot(csv_path: Path, image_path: Path) -> None:
    """Write a PNG (or what the suffix says) with one panel per device, dtype and size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    with csv_path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["best_ms"]]
    panels: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        key = (row["device"], row["dtype"], row["tokens"], row["hidden"])
        bars = panels.setdefault(key, {})
        bars[row["what"]] = min(float(row["best_ms"]), bars.get(row["what"], float("inf")))
    figure, axes = pyplot.subplots(
        len(panels), 1, squeeze=False, figsize=(9, 0.8 + 3.6 * len(panels))
    )
    for axis, ((device, dtype, tokens, hidden), bars) in zip(
        axes[:, 0], panels.items(), strict=True
    ):
        names = list(bars)[::-1]
        colours = ["tab:green" if n.startswith("op") else "tab:gray" for n in names]
        drawn = axis.barh(names, [bars[name] for name in names], color=colours)
        axis.bar_label(drawn, fmt="%.3g", padding=3)
        axis.axvline(bars["fill"], color="black", linewidth=0.8, linestyle="dotted")
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(ticker.ScalarFormatter())
        axis.xaxis.set_minor_formatter(ticker.NullFormatter())
        axis.margins(x=0.15)
        axis.set_xlabel("best milliseconds (dotted: fill)")
        axis.set_title(f"{dtype}, {tokens} tokens x {hidden}, {device}")
    figure.tight_layout()
    figure.savefig(image_path, dpi=120)
