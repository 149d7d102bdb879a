"""Plans as text, CSV rows and a figure."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fixedcode_megatron.planning.hardware import GIB
from fixedcode_megatron.planning.plan import Plan

MIB = 2**20


def overview(pairs: list[tuple[Plan, Plan]], tokens: float, price: float) -> str:
    """One line per plan, with the learned table's figures beside the fixed code's."""
    head = (
        f"{'GPUs':>6}{'TP':>4}{'PP':>4}{'VP':>4}{'CP':>4}{'DP':>6}{'MBS':>5}{'rec.':>6}"
        f"{'GiB':>8}{'learned':>9}{'s/step':>9}{'learned':>9}{'MFU':>7}{'tok/s/GPU':>11}"
        f"{'hours':>8}{'GPU-h':>8}{'cost $':>9}"
    )
    lines = [head]
    for fixed, learned in pairs:
        r, hours = fixed.rank, fixed.hours(tokens)
        gpu_hours = hours * fixed.world_size
        lines.append(
            f"{fixed.world_size:>6}{r.tp:>4}{r.pp:>4}{r.chunks:>4}{r.cp:>4}{r.dp:>6}{r.batch:>5}"
            f"{r.recompute:>6}{fixed.memory.total / GIB:>8.1f}{learned.memory.total / GIB:>9.1f}"
            f"{fixed.time.total:>9.3f}{learned.time.total:>9.3f}{fixed.mfu:>7.1%}"
            f"{fixed.tokens_per_second / fixed.world_size:>11,.0f}"
            f"{hours:>8.1f}{gpu_hours:>8,.0f}{gpu_hours * price:>9,.0f}"
        )
    return "\n".join(lines)


def details(fixed: Plan, learned: Plan) -> str:
    """Memory, step time and collectives of a plan by category, fixed and learned side by side."""
    names = (fixed.cfg.input.input_interface, learned.cfg.input.input_interface)
    lines = [
        f"{fixed.world_size} {fixed.gpu.name}: {' '.join(fixed.flags())}",
        f"  {'GiB on the fullest rank':<34}{names[0]:>12}{names[1]:>12}",
    ]
    for name in (*asdict(fixed.memory), "total"):
        lines.append(_pair(name, fixed.memory, learned.memory, GIB, 3))
    lines.append(f"  {'ms of a step':<34}{names[0]:>12}{names[1]:>12}")
    for name in (*asdict(fixed.time), "total"):
        lines.append(_pair(name, fixed.time, learned.time, 1e-3, 2))
    lines.append(f"  {'calls and MiB of a step':<34}{names[0]:>18}{names[1]:>18}")
    for key in sorted(fixed.traffic.calls | learned.traffic.calls):
        cells = [
            f"{plan.traffic.calls[key]:,} / {plan.traffic.size[key] / MIB:,.1f}"
            for plan in (fixed, learned)
        ]
        lines.append(f"  {key!s:<34}{cells[0]:>18}{cells[1]:>18}")
    return "\n".join(lines)


def _pair(name: str, fixed: Any, learned: Any, unit: float, digits: int) -> str:
    values = [getattr(found, name) / unit for found in (fixed, learned)]
    return f"  {name.replace('_', ' '):<34}{values[0]:>12.{digits}f}{values[1]:>12.{digits}f}"


def rows(pairs: list[tuple[Plan, Plan]], tokens: float, price: float) -> list[dict[str, Any]]:
    """One flat row per plan and interface."""
    found = []
    for plan in (plan for pair in pairs for plan in pair):
        r, hours = plan.rank, plan.hours(tokens)
        found.append(
            dict(
                gpu=plan.gpu.name,
                gpus=plan.world_size,
                interface=plan.cfg.input.input_interface,
                tp=r.tp,
                pp=r.pp,
                vp=r.chunks,
                cp=r.cp,
                dp=r.dp,
                micro_batch_size=r.batch,
                recompute=r.recompute,
                **{f"{name}_bytes": value for name, value in asdict(plan.memory).items()},
                **{f"{name}_s": round(value, 6) for name, value in asdict(plan.time).items()},
                step_s=round(plan.time.total, 6),
                mfu=round(plan.mfu, 4),
                tokens_per_second=round(plan.tokens_per_second),
                hours=round(hours, 2),
                gpu_hours=round(hours * plan.world_size, 1),
                cost_usd=round(hours * plan.world_size * price),
            )
        )
    return found


def draw(pairs: list[tuple[Plan, Plan]], path: Path) -> None:
    """Step time, memory and what the table costs, over the number of GPUs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    gpus = [fixed.world_size for fixed, _ in pairs]
    figure, (time, memory, share) = plt.subplots(1, 3, figsize=(13, 3.8))
    for which, name in enumerate(("fixed code", "learned table")):
        style = ("o-", "s--")[which]
        time.plot(gpus, [pair[which].time.total for pair in pairs], style, label=name)
        states = [_states(pair[which]) / GIB for pair in pairs]
        memory.plot(gpus, states, style, label=f"{name}, states")
    time.set(title="predicted step time", ylabel="seconds", yscale="log")
    memory.set(title="parameters, gradients, optimizer per GPU", ylabel="GiB", ylim=(0, None))
    share.plot(
        gpus, [100 * (b.time.total / a.time.total - 1) for a, b in pairs], "o-", label="time"
    )
    saved = [100 * (1 - _states(a) / _states(b)) for a, b in pairs]
    share.plot(gpus, saved, "s--", label="states' memory")
    share.set(title="what the table costs", ylabel="per cent", ylim=(0, None))
    for axis in (time, memory, share):
        axis.set(xscale="log", xlabel="GPUs")
        axis.set_xticks(gpus, [str(n) for n in gpus])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _states(plan: Plan) -> int:
    return plan.memory.total - plan.memory.activations
