"""The comparison as text, Markdown and JSON."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fixedcode_megatron.baselines import Baselines
from fixedcode_megatron.jobs.text import markdown_table, text_table
from fixedcode_megatron.quickstart.analyse import (
    PROMPT,
    SAMPLE_SEED,
    SAMPLE_TOKENS,
    TEMPERATURE,
    Figures,
)

HEADER = (
    "input interface", "input parameters", "trainable parameters", "optimizer bytes",
    "validation loss", "perplexity", "nats below unigram", "tokens/s",
)  # fmt: skip
SHORT_HEADER = (
    "interface", "input params", "all params", "optimizer B", "val. loss", "PPL", "below unigram",
    "tokens/s",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that was found out.

    Attributes
    ----------
    models
        One for each interface, in the order of training.
    evaluated_tokens
        Predictions that each validation loss is the mean of.
    commands
        What trained each model.
    versions
        Software and machine, by name.
    """

    models: Sequence[Figures]
    baselines: Baselines
    evaluated_tokens: int
    commands: Sequence[str]
    versions: dict[str, str]

    def margin(self, model: Figures) -> float:
        """Nats that a model is below the unigram baseline."""
        return self.baselines.unigram - model.validation_loss

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for report.json."""
        models = [
            asdict(m)
            | {
                "perplexity": math.exp(m.validation_loss),
                "nats_below_unigram": self.margin(m),
                "bit_loss_increases": bit_increases(m),
                "every_bit_raises_the_loss": None if m.bit_losses is None else every_bit_raises(m),
            }
            for m in self.models
        ]
        return {
            "models": models,
            "baselines": asdict(self.baselines),
            "evaluated_tokens": self.evaluated_tokens,
            "commands": list(self.commands),
            "versions": self.versions,
        }


def bit_increases(model: Figures) -> list[float] | None:
    """How much the loss rises with each code bit zeroed, in nats."""
    if model.bit_losses is None:
        return None
    return [loss - model.validation_loss for loss in model.bit_losses]


def every_bit_raises(model: Figures) -> bool:
    """Whether zeroing any one code bit raises the loss."""
    return all(increase > 0 for increase in bit_increases(model) or [])


def model_rows(report: Report) -> list[tuple[str, ...]]:
    """The comparison, one row for each model, then the baselines."""
    rows: list[tuple[str, ...]] = [
        (
            m.interface,
            f"{m.input_parameters:,}",
            f"{m.trainable_parameters:,}",
            f"{m.optimizer_bytes:,}",
            f"{m.validation_loss:.3f}",
            f"{math.exp(m.validation_loss):,.1f}",
            f"{report.margin(m):.3f}",
            f"{m.tokens_per_second:,.0f}",
        )
        for m in report.models
    ]
    unigram, bigram = report.baselines.unigram, report.baselines.bigram
    for name, loss in (("(unigram)", unigram), ("(bigram)", bigram)):
        figures = (f"{loss:.3f}", f"{math.exp(loss):,.1f}", f"{unigram - loss:.3f}")
        rows.append((name, "", "", "", *figures, ""))
    return rows


def bit_rows(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of the table of bits: how much the loss rises with each one zeroed."""
    coded = [(m.interface, increases) for m in report.models if (increases := bit_increases(m))]
    header = ("code bit zeroed", *(name for name, _ in coded))
    count = max((len(increases) for _, increases in coded), default=0)
    rows = [(str(bit), *(f"{inc[bit]:+.3f}" for _, inc in coded)) for bit in range(count)]
    return header, rows


def bit_sentences(report: Report) -> list[str]:
    """What the table of bits shows, in words."""
    sentences = []
    for m in report.models:
        if increases := bit_increases(m):
            answer = "raises" if every_bit_raises(m) else "does NOT always raise"
            sentences.append(
                f"{m.interface}: zeroing any one of the {len(increases)} code bits {answer} the "
                f"loss (by {min(increases):.3f} to {max(increases):.3f} nats)."
            )
    return sentences


def caveat(report: Report) -> str:
    """What the figures support, and what they do not."""
    return (
        "What this supports: each interface trains, by the margin shown below the unigram "
        "baseline, and the table of bits says whether the fixed-code models use every bit. What "
        "it does not: which interface is better. There is one seed of each, the models are tiny, "
        f"the training short, and {report.evaluated_tokens:,} held-out tokens are few; a tenth of "
        "a nat or so may change with the seed. Tokens per second are this machine's, with "
        "whatever else it was doing."
    )


def to_text(report: Report) -> str:
    """What the terminal shows at the end."""
    parts = [text_table(SHORT_HEADER, model_rows(report))]
    parts += ["Rise of the validation loss:", text_table(*bit_rows(report))]
    parts.append("\n".join(bit_sentences(report)))
    for m in report.models:
        sample = textwrap.indent(PROMPT + m.sample, "    ")
        parts.append(f"Text by {m.interface}:\n{sample}")
    parts.append(textwrap.fill(caveat(report), 96))
    return "\n\n".join(parts)


def to_markdown(report: Report, *, with_curves: bool) -> str:
    """report.md."""
    parts = [
        "# Quickstart: three input interfaces, one training recipe",
        "The same model trained with a learned table (`learned`), with the bits of the token's id "
        "(`binary`) and with those bits recoded by an invertible matrix (`gf2`). All three read "
        f"the same samples in the same order (data checksum {report.models[0].data_checksum}).",
        caveat(report),
        markdown_table(HEADER, model_rows(report)),
        f"Losses are nats per token, the mean over the same {report.evaluated_tokens:,} held-out "
        "tokens for models and baselines. The baselines count the whole training split. Optimizer "
        "bytes are those of the real state tensors (Adam's two moments).",
        *(["![loss over training tokens](curves.png)"] if with_curves else []),
        "## What each code bit is worth",
        "Rise of the validation loss, in nats, with one code bit shown as 0 for every token.",
        markdown_table(*bit_rows(report)),
        "\n".join(f"- {sentence}" for sentence in bit_sentences(report)),
        "## Samples",
        f'Prompt "{PROMPT}", at most {SAMPLE_TOKENS} tokens, temperature {TEMPERATURE}, seed '
        f"{SAMPLE_SEED}.",
    ]
    for m in report.models:
        parts += [f"### {m.interface}", f"`````text\n{PROMPT}{m.sample}\n`````"]
    versions = "\n".join(f"- {name}: {value}" for name, value in report.versions.items())
    commands = "\n".join(report.commands)
    parts += ["## Commands", f"```bash\n{commands}\n```", "## Versions", versions]
    return "\n\n".join(parts) + "\n"
