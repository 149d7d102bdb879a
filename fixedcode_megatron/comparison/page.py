"""The report as one HTML file that needs nothing else, as Markdown, and as CSV files."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from fixedcode_megatron.comparison.figures import Figure, Series, number
from fixedcode_megatron.comparison.svg import DASHES, scales, svg
from fixedcode_megatron.comparison.tables import Table
from fixedcode_megatron.data.files import write_text_whole
from fixedcode_megatron.jobs.text import markdown_table

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Report:
    """Everything that is shown.

    Attributes
    ----------
    tables
        The first stands before everything else, the others after the figures.
    findings
        One sentence for each variant against the first.
    matched
        Sentences on data and initial weights.
    missing
        Names of runs that are not complete.
    commands
        What trains each run again.
    losses
        Every loss that was logged; a CSV file of its own, not shown.
    """

    title: str
    findings: Sequence[str]
    matched: Sequence[str]
    missing: Sequence[str]
    tables: Sequence[Table]
    figures: Sequence[Figure]
    commands: Sequence[str]
    losses: Table


def write_report(folder: Path, report: Report) -> None:
    """Write report.html, report.md, losses.csv and csv/*.csv into a folder.

    Figures are numbered when a grid has several settings, so an earlier report may have written a
    figure under another name: such files are removed.
    """
    (folder / "csv").mkdir(parents=True, exist_ok=True)
    write_text_whole(folder / "report.html", to_html(report))
    write_text_whole(folder / "report.md", to_markdown(report))
    write_text_whole(folder / "losses.csv", to_csv(report.losses))
    tables = {t.key: t for t in [*report.tables, *(figure.table for figure in report.figures)]}
    for key, table in tables.items():
        write_text_whole(folder / "csv" / f"{key}.csv", to_csv(table))
    kinds = {_unnumbered(key) for key in tables}
    for path in (folder / "csv").glob("*.csv"):
        if path.stem not in tables and _unnumbered(path.stem) in kinds:
            path.unlink()


def _unnumbered(key: str) -> str:
    return re.sub(r"_\d+$", "", key)


def to_csv(table: Table) -> str:
    """Header and rows, the cells as they are shown."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([table.header, *table.rows])
    return stream.getvalue()


def to_markdown(report: Report) -> str:
    """Findings, tables and commands; the figures' numbers are in the CSV files."""
    parts = [f"# {report.title}", _listed(report.findings), " ".join(report.matched)]
    if report.missing:
        parts.append(_missing(report))
    for table in report.tables:
        parts += [f"## {table.title}", markdown_table(table.header, table.rows)]
        parts += [table.note] if table.note else []
    curves = "\n".join(f"- {f.title}: csv/{f.key}.csv" for f in report.figures)
    commands = "\n".join(report.commands)
    parts += ["## Curves", f"report.html shows them.\n\n{curves}"]
    parts += ["## Commands", f"```bash\n{commands}\n```"]
    return "\n\n".join(parts) + "\n"


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _missing(report: Report) -> str:
    return f"Not complete, and left out: {', '.join(report.missing)}."


def to_html(report: Report) -> str:
    """The page."""
    findings = "".join(f"<li>{escape(sentence)}</li>" for sentence in report.findings)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(report.title)}</title><style>{_file('page.css')}</style></head><body>",
        f"<main><h1>{escape(report.title)}</h1>",
        _section(report.tables[0]),
        f'<ul class="findings">{findings}</ul>',
        f"<p>{escape(' '.join(report.matched))}</p>",
    ]
    if report.missing:
        parts.append(f"<p><strong>{escape(_missing(report))}</strong></p>")
    parts.append(
        "<h2>Curves</h2><p>Lines are means over seeds, bands reach from the least to the "
        "largest. Point at a plot, or focus it and use the arrow keys, to read values; "
        "the buttons switch lines on and off.</p>"
    )
    parts += [_figure(figure) for figure in report.figures]
    parts += [_section(table) for table in report.tables[1:]]
    commands = escape("\n".join(report.commands))
    parts.append(f"<h2>Commands</h2><pre><code>{commands}</code></pre></main>")
    parts.append(f"<script>{_file('page.js')}</script></body></html>\n")
    return "\n".join(parts)


def _file(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _section(table: Table) -> str:
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return f"<section><h2>{escape(table.title)}</h2>{_table(table)}{note}</section>"


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table: {escape(table.title)}">'
        f'<table data-table="{table.key}"><caption>{escape(table.title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _figure(figure: Figure) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="true">{_swatch(i)} {escape(line.name)}</button>'
        for i, line in enumerate(figure.series)
    )
    x_of, _, _, _ = scales(figure)
    data = {
        "series": [_readable(figure, line, [x_of(x) for x in line.x]) for line in figure.series]
    }
    # `<` would let a name end the script.
    content = json.dumps(data).replace("<", "\\u003c")
    label = escape(f"{figure.title}: arrow keys move along the curve")
    return (
        f'<figure data-figure="{figure.key}"><figcaption>{escape(figure.title)}</figcaption>'
        f'<div class="legend" role="group" aria-label="Lines">{buttons}</div>'
        f'<div class="plot" tabindex="0" role="group" aria-label="{label}">{svg(figure)}</div>'
        '<output aria-live="polite"></output>'
        f'<script type="application/json">{content}</script>'
        f"<details><summary>Values of this figure</summary>{_table(figure.table)}</details>"
        "</figure>"
    )


def _readable(figure: Figure, line: Series, places: Sequence[float]) -> dict[str, object]:
    """A series for the script: places in the picture, and what to say there."""
    unit = "" if figure.ticks else f" {figure.x_label}"
    names = [figure.ticks[round(x)] if figure.ticks else number(x) for x in line.x]
    return {
        "name": line.name,
        "at": [round(place, 1) for place in places],
        "x": [f"{name}{unit}" for name in names],
        "values": [
            f"{middle:.4f} ({low:.4f} to {high:.4f})"
            for middle, low, high in zip(line.mean, line.low, line.high, strict=True)
        ],
    }


def _swatch(index: int) -> str:
    dashes = f' stroke-dasharray="{dash}"' if (dash := DASHES[index % len(DASHES)]) else ""
    return (
        f'<svg viewBox="0 0 40 10" class="s{index % len(DASHES)}" aria-hidden="true">'
        f'<line x1="0" x2="40" y1="5" y2="5"{dashes}/></svg>'
    )
