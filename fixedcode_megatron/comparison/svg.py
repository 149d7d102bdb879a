"""A figure as SVG that needs no script: axes, a band and a line with marks for each series."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from fixedcode_megatron.comparison.figures import Figure, Series, number

WIDTH, HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 46
DASHES = ("", "7 4", "2 3", "9 3 2 3", "5 5", "12 4", "1 4", "3 6")
"""Of the series in turn, so that they are told apart without colours."""

Scale = Callable[[float], float]


def scales(figure: Figure) -> tuple[Scale, Scale, list[float], list[float]]:
    """Maps of x and y to places in the picture, and the values that the axes name."""
    xs = [x for line in figure.series for x in line.x]
    ys = [y for line in figure.series for y in (*line.low, *line.high)]
    if figure.ticks:
        x_low, x_high = 0.0, float(max(1, len(figure.ticks) - 1))
        x_marks = [float(i) for i in range(0, len(figure.ticks), max(1, len(figure.ticks) // 8))]
    else:
        x_low, x_high = 0.0, max(xs) or 1.0
        x_marks = nice_steps(x_low, x_high)
    low, high = min(ys), max(ys)
    logarithmic = figure.log_y and low > 0 and high / low > 3
    if logarithmic:
        y_marks = [m * 10.0**e for e in range(-12, 13) for m in (1, 2, 5)]
        low, high = low / 1.05, high * 1.05
        y_marks = [y for y in y_marks if low <= y <= high]
    else:
        margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
        low, high = low - margin, high + margin
        y_marks = nice_steps(low, high)

    def x_of(x: float) -> float:
        return _LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - _LEFT - _RIGHT)

    def y_of(y: float) -> float:
        if logarithmic:
            share = math.log(y / low) / math.log(high / low)
        else:
            share = (y - low) / (high - low)
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)

    return x_of, y_of, x_marks, y_marks


def nice_steps(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers between two values: multiples of 1, 2 or 5 times a power of 10."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def svg(figure: Figure) -> str:
    """The picture; series have the classes s0, s1, ... that the page gives colours to."""
    x_of, y_of, x_marks, y_marks = scales(figure)
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_described(figure))}">'
    ]
    for y in y_marks:
        at = f"{y_of(y):.1f}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at}" class="y">{_mark(y)}</text>')
    for x in x_marks:
        text = figure.ticks[round(x)] if figure.ticks else _mark(x)
        kind = "x last" if x_of(x) > right - 20 else "x"
        at = f'x="{x_of(x):.1f}" y="{bottom + 18}"'
        parts.append(f'<text {at} class="{kind}">{escape(text)}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" class="x">{escape(figure.x_label)}</text>')
    turned = (_TOP + bottom) / 2
    parts.append(
        f'<text class="x" transform="translate(14 {turned}) rotate(-90)">'
        f"{escape(figure.y_label)}</text>"
    )
    parts += [_series(i, line, x_of, y_of) for i, line in enumerate(figure.series)]
    parts.append(f'<line class="cursor" y1="{_TOP}" y2="{bottom}" x1="0" x2="0" hidden="hidden"/>')
    return "".join([*parts, "</svg>"])


def _series(index: int, line: Series, x_of: Scale, y_of: Scale) -> str:
    def points(ys: Sequence[float]) -> list[str]:
        return [f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in zip(line.x, ys, strict=True)]

    band = " ".join([*points(line.low), *reversed(points(line.high))])
    dashes = f' stroke-dasharray="{dash}"' if (dash := DASHES[index % len(DASHES)]) else ""
    marks = ""
    if len(line.x) <= 40:
        marks = "".join(
            f'<circle r="3" cx="{x}" cy="{y}"/>'
            for x, y in (point.split(",") for point in points(line.mean))
        )
    return (
        f'<g class="s{index % len(DASHES)}" data-series="{index}"><polygon points="{band}"/>'
        f'<polyline points="{" ".join(points(line.mean))}"{dashes}/>{marks}</g>'
    )


def _described(figure: Figure) -> str:
    """The figure in words, for those who do not see it."""
    ends = "; ".join(f"{line.name} ends at {line.mean[-1]:.4f}" for line in figure.series)
    return f"{figure.title}. {ends}. The table below has all values."


def _mark(value: float) -> str:
    return number(0.0 if abs(value) < 1e-12 else value)
