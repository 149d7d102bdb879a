"""Measured throughput as a table, CSV rows and a figure."""

from __future__ import annotations

import csv
import statistics
from datetime import date
from pathlib import Path
from typing import Any

import torch

from fixedcode_megatron.planning.stopwatch import PARTS
from fixedcode_megatron.planning.throughput import Measurement, Variant

MIB = 2**20


def table(found: Measurement) -> str:
    """Speed, memory and step breakdown of every variant."""
    first = found.variants[0]
    lines = [
        f"{found.device_name} x {found.world_size}, {found.tokens:,} tokens a step, "
        f"{len(first.seconds)} rounds",
        f"{'':<16}{'ms/step':>10}{'tok/s':>11}{'tok/s/GPU':>11}{'MFU':>7}"
        f"{'x ' + first.name:>11}{'min .. max':>18}{'W/GPU':>7}{'tok/J':>8}",
    ]
    for variant in found.variants:
        speed, mfu, ratios = (
            found.tokens_per_second(variant),
            found.mfu(variant),
            found.ratios(variant),
        )
        watts, per_joule = _power(found, variant)
        lines.append(
            f"{variant.name:<16}{statistics.median(variant.seconds) * 1e3:>10.2f}{speed:>11,.0f}"
            f"{speed / found.world_size:>11,.0f}{'n/a' if mfu is None else f'{mfu:.1%}':>7}"
            f"{statistics.median(ratios):>11.3f}{f'{min(ratios):.3f} .. {max(ratios):.3f}':>18}"
            f"{'n/a' if watts is None else f'{watts:.0f}':>7}"
            f"{'n/a' if per_joule is None else f'{per_joule:.1f}':>8}"
        )
    lines += ["", f"{'MiB on rank 0':<16}" + "".join(f"{n:>14}" for n in (*first.memory, "total"))]
    for variant in found.variants:
        sizes = [*variant.memory.values(), sum(variant.memory.values())]
        lines.append(f"{variant.name:<16}" + "".join(f"{size / MIB:>14,.1f}" for size in sizes))
    if first.parts:
        lines += ["", f"{'ms of a step':<16}" + "".join(f"{part:>20}" for part in PARTS)]
        for variant in found.variants:
            cells = [f"{variant.part(part) * 1e3:>20.2f}" for part in PARTS]
            lines.append(f"{variant.name:<16}" + "".join(cells))
    return "\n".join(lines)


def _power(found: Measurement, variant: Variant) -> tuple[float | None, float | None]:
    """Watts of one GPU and tokens per joule of all."""
    if not variant.joules:
        return None, None
    joules = statistics.median(variant.joules)
    watts = joules / statistics.median(variant.seconds) / found.world_size
    return watts, found.tokens / joules


def write_csv(found: Measurement, path: Path) -> None:
    """One row per variant and round."""
    rows: list[dict[str, Any]] = []
    for variant in found.variants:
        for round_, seconds in enumerate(variant.seconds):
            parts = variant.parts[round_] if variant.parts else {}
            rows.append(
                dict(
                    date=date.today().isoformat(),
                    device=found.device_name,
                    ranks=found.world_size,
                    torch=torch.__version__,
                    variant=variant.name,
                    round=round_,
                    step_ms=round(seconds * 1e3, 4),
                    tokens_per_second=round(found.tokens / seconds, 1),
                    ratio=round(found.ratios(variant)[round_], 5),
                    joules=variant.joules[round_] if variant.joules else "",
                    **{f"{name}_bytes": size for name, size in variant.memory.items()},
                    **{
                        f"{part.replace(' ', '_')}_ms": round(parts[part] * 1e3, 4) if parts else ""
                        for part in PARTS
                    },
                )
            )
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def draw(found: Measurement, path: Path) -> None:
    """Step time by part, and each round's speed relative to the first variant."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = [variant.name for variant in found.variants]
    figure, (bars, dots) = plt.subplots(1, 2, figsize=(10, 3.8))
    bottom = [0.0] * len(names)
    for part in PARTS if found.variants[0].parts else ():
        heights = [variant.part(part) * 1e3 for variant in found.variants]
        bars.bar(names, heights, bottom=bottom, label=part)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    bars.set(ylabel="ms of an instrumented step")
    bars.legend(fontsize=8)
    for place, variant in enumerate(found.variants):
        ratios = found.ratios(variant)
        dots.plot([place] * len(ratios), ratios, "o", alpha=0.5)
        dots.plot([place - 0.2, place + 0.2], [statistics.median(ratios)] * 2, "k-")
    dots.set_xticks(range(len(names)), names)
    dots.set(ylabel=f"speed relative to {names[0]}, each round")
    dots.grid(alpha=0.3)
    figure.suptitle(f"{found.device_name} x {found.world_size}, {date.today().isoformat()}")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
