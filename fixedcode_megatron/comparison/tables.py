"""The report's tables: one source of every number in the page, the Markdown and the CSV files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from fixedcode_megatron.comparison.matched import checksums
from fixedcode_megatron.comparison.results import MEMORY, Group, RunResult, differences
from fixedcode_megatron.training.gradient_norms import PARTS

MIB = 2**20
NONE = "-"


@dataclass(frozen=True)
class Table:
    """Cells as they are shown.

    Attributes
    ----------
    key
        Name of its CSV file and its place in the page.
    """

    key: str
    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def summary(groups: Mapping[str, Sequence[Group]]) -> Table:
    """Like paper A's Table 1: mean perplexity and relative seed range of each variant."""
    rows = []
    for members in groups.values():
        reference = members[0]
        for group in members:
            difference = group.mean_perplexity / reference.mean_perplexity - 1
            seed_range = group.seed_range
            rows.append(
                (
                    *_place(group),
                    f"{len(group.runs)}",
                    f"{mean(run.loss for run in group.runs):.4f}",
                    f"{group.mean_perplexity:,.3f}",
                    NONE if seed_range is None else f"{seed_range:.2%}",
                    NONE if group is reference else f"{difference:+.2%}",
                    NONE if group is reference else _span(differences(reference, group)),
                    _count(group.runs[0].parameters),
                    _count(group.runs[0].input_parameters),
                )
            )
    return Table(
        "summary",
        "Validation perplexity",
        (
            "setting", "variant", "seeds", "mean loss (nats)", "mean perplexity",
            "seed range / mean", "against the first", "loss against it, seed by seed", "parameters",
            "input parameters",
        ),
        rows,
        "Perplexity is exp of the loss, averaged over seeds; the seed range is (max - min) / mean. "
        "Seed by seed: the least and the largest difference of two losses (nats) of one seed. "
        "Parameters are trainable ones, the head's padding included. Paper A's Table 1 (537M, own "
        "data and tokenizer, 3 seeds; not comparable with figures of another tokenizer): learned "
        "2.44, canonical (binary) 2.36, affine (gf2) 2.39, seed range 4.8 %.",
    )  # fmt: skip


def _span(values: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{end:+.4f}" for end in (min(values), max(values))) if values else [NONE]
    return " to ".join(ends)


def runs(results: Sequence[RunResult]) -> Table:
    """One row for each run, with what proves that runs are matched."""
    rows = []
    for run in results:
        last = run.history.train[-1]
        total = checksums(run.history)[last["iteration"]]
        weights = run.weights or {}
        rows.append(
            (
                run.name,
                f"{last['iteration']:,}",
                f"{last['consumed tokens']:,}",
                f"{run.loss:.4f}",
                f"{run.perplexity:,.3f}",
                f"{total}",
                *(weights[part]["checksum"] if weights else NONE for part in ("layers", "head")),
            )
        )
    return Table(
        "runs",
        "Every run",
        (
            "run", "iterations", "tokens", "loss (nats)", "perplexity", "data checksum",
            "initial layers", "initial head",
        ),
        rows,
        "The data checksum adds up the CRC-32 of every sample's tokens; the checksums of the "
        "initial weights are of all layers and of the head.",
    )  # fmt: skip


def losses(results: Sequence[RunResult]) -> Table:
    """Every loss that the runs have logged, to check a run that is trained again."""
    rows = []
    for run in results:
        sums = checksums(run.history)
        trained, held_out = (
            {row["iteration"]: row["lm loss"] for row in kind}
            for kind in (run.history.train, run.history.validation)
        )
        for iteration in sorted(trained.keys() | held_out.keys()):
            found = (trained.get(iteration), held_out.get(iteration))
            shown = ("" if loss is None else f"{loss:.6f}" for loss in found)
            rows.append((run.name, f"{iteration}", *shown, f"{sums.get(iteration, '')}"))
    header = ("run", "iteration", "lm loss", "validation loss", "data checksum")
    return Table("losses", "Losses (nats)", header, rows)


def machine(groups: Mapping[str, Sequence[Group]]) -> Table:
    """Memory and speed."""
    rows = []
    for members in groups.values():
        reference = _speed(members[0])
        for group in members:
            speed = _speed(group)
            rows.append(
                (
                    *_place(group),
                    *(_mib(group, part) for part in MEMORY),
                    f"{speed:,.0f}",
                    NONE if group is members[0] else f"{speed / reference - 1:+.1%}",
                )
            )
    peak = next(iter(groups.values()))[0].runs[0].history.train[-1].get("memory peak of")
    return Table(
        "machine",
        "Memory and throughput",
        (
            "setting", "variant", *(f"{part} (MiB)" for part in MEMORY), "tokens/s",
            "against the first",
        ),
        rows,
        "Memory of the rank that holds most in each category, the largest of all seeds; the peak "
        f"is the {peak}. Tokens per second of all ranks: median over a run's log lines, averaged "
        "over seeds. Speeds compare where the machine did nothing else.",
    )  # fmt: skip


def gradients(groups: Mapping[str, Sequence[Group]]) -> Table:
    """Gradient norms by part of the model."""
    rows = []
    for members in groups.values():
        for group in members:
            cells = []
            for part in PARTS:
                found = [run.gradient_norm(part) for run in group.runs]
                values = [value for value in found if value is not None]
                cells.append(f"{mean(values):.4f}" if values else NONE)
            rows.append((*_place(group), *cells))
    return Table(
        "gradients",
        "Gradient norm by part of the model",
        ("setting", "variant", *PARTS),
        rows,
        "Before clipping: median over a run's log lines, averaged over seeds. A computed input has "
        "no gradient.",
    )


def ranks(groups: Mapping[str, Sequence[Group]], bits: int | None) -> Table:
    """Rank and effective rank of the hidden states, from the input to the last layer."""
    rows = []
    reasons = set()
    for group in (group for members in groups.values() for group in members):
        measured = [run.spectra for run in group.runs if isinstance(run.spectra, list)]
        reasons |= {run.spectra for run in group.runs if isinstance(run.spectra, str)} - {""}
        for spectra in zip(*measured, strict=True):
            rows.append(
                (
                    *_place(group),
                    spectra[0].place,
                    f"{max(s.rank for s in spectra)}",
                    f"{mean(s.effective_rank for s in spectra):.2f}",
                    f"{mean(s.rms for s in spectra):.4f}",
                )
            )
    bound = "" if bits is None else f" (K = {bits} here)"
    note = (
        "Hidden states of held-out tokens in the last checkpoint, as a matrix of tokens by width. "
        "Rank counts the singular values that FP32 tells from 0 (the largest of all seeds); the "
        "effective rank is exp of the entropy of the singular values, RMS the size of an element, "
        "both averaged over seeds. Proposition 3 of paper A: with a fixed code the rank at the "
        f"input is at most K = ceil(log2 V){bound}."
    )
    if reasons:
        note += f" Not measured: {'; '.join(sorted(reasons))}."
    header = ("setting", "variant", "after", "rank", "effective rank", "RMS")
    return Table("ranks", "Rank of the hidden states", header, rows, note)


def _place(group: Group) -> tuple[str, str]:
    return group.setting or NONE, group.variant


def _count(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def _mib(group: Group, part: str) -> str:
    found = [run.memory(part) for run in group.runs]
    values = [value for value in found if value is not None]
    return f"{max(values) / MIB:,.1f}" if values else NONE


def _speed(group: Group) -> float:
    return mean(run.history.tokens_per_second for run in group.runs)
