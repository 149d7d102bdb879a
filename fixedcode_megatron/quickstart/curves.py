"""curves.png: loss of each model over the tokens it has read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fixedcode_megatron.baselines import Baselines
from fixedcode_megatron.data.files import temporary_beside
from fixedcode_megatron.training.metrics_file import History

# Three colours of Okabe and Ito's palette, told apart by all kinds of colour vision; the markers
# tell them apart without any.
_STYLES = {"learned": ("#0072B2", "o"), "binary": ("#D55E00", "s"), "gf2": ("#009E73", "^")}


def draw_curves(
    path: Path, histories: Mapping[str, History], tokens_per_iteration: int, baselines: Baselines
) -> bool:
    """Draw validation loss (with markers) and smoothed training loss (thin) of each interface.

    Returns
    -------
    bool
        False, and nothing drawn, where matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.5, 5.2), layout="constrained")
    for name, history in histories.items():
        color, marker = _STYLES[name]
        millions = [row["consumed tokens"] / 1e6 for row in history.train]
        losses = smoothed([row["lm loss"] for row in history.train])
        axes.plot(millions, losses, color=color, linewidth=1, alpha=0.45)
        millions = [row["iteration"] * tokens_per_iteration / 1e6 for row in history.validation]
        losses = [row["lm loss"] for row in history.validation]
        axes.plot(
            millions, losses, color=color, marker=marker, linewidth=2, markersize=6,
            label=f"{name}: {losses[-1]:.3f}",
        )  # fmt: skip
    for name, loss, dashes in (
        ("unigram", baselines.unigram, "--"),
        ("bigram", baselines.bigram, ":"),
    ):
        label = f"{name} baseline: {loss:.3f}"
        axes.axhline(loss, color="0.25", linestyle=dashes, linewidth=1.5, label=label)
    axes.set_xlabel("training tokens (millions)")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title("Validation loss (markers) and smoothed training loss (thin lines)", fontsize=11)
    axes.set_xlim(left=0)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="validation loss at the end", framealpha=1, edgecolor="white")
    # Written under another name first, so that an interrupted run leaves no half picture.
    temporary = temporary_beside(path)
    figure.savefig(temporary, dpi=150, format="png")
    pyplot.close(figure)
    temporary.rename(path)
    return True


def smoothed(values: list[float], weight: float = 0.6) -> list[float]:
    """Exponential moving average that starts at the first value.

    `y[i] = weight * y[i - 1] + (1 - weight) * x[i]`
    """
    result: list[float] = []
    for value in values:
        result.append(weight * result[-1] + (1 - weight) * value if result else value)
    return result
