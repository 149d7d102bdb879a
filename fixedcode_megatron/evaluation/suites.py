"""The papers' benchmarks and the results that they published."""

from __future__ import annotations

from dataclasses import dataclass, field

FRACTIONS = ("acc", "acc_norm", "exact_match", "f1", "em")
"""Metrics that are shown in percent, as in the papers."""


@dataclass(frozen=True)
class Suite:
    """The tasks of one paper.

    Attributes
    ----------
    metrics
        The metric of each task, by the harness's names.
    columns
        The paper's models.
    published
        What the paper says of them, by task; in percent, or a perplexity.
    note
        What else it says, where a table has no place for it.
    """

    metrics: dict[str, str]
    columns: tuple[str, ...] = ()
    published: dict[str, tuple[str, ...]] = field(default_factory=dict)
    note: str = ""

    def row(self, task: str) -> tuple[str, ...]:
        """The published results of a task, one for each of `columns`."""
        return self.published.get(task, ("-",) * len(self.columns))


SUITES = {
    "paper-a": Suite(
        # Paper A scores candidate answers by their conditional log-likelihood, which is `acc`.
        metrics={"arc_challenge": "acc", "hellaswag": "acc"},
        note="paper A publishes no figures of these tasks that we know. Its validation perplexity "
        "(own data and tokenizer of about 1.7 characters a token, comparable with no other): "
        "learned 2.44, canonical 2.36, affine 2.39",
    ),
    "paper-b": Suite(
        metrics={
            "hellaswag": "acc_norm",
            "piqa": "acc",
            "lambada_openai": "acc",
            "arc_easy": "acc_norm",
            "arc_challenge": "acc_norm",
            "winogrande": "acc",
            "openbookqa": "acc_norm",
            "commonsense_qa": "acc",
            "mmlu": "acc",
            "wikitext": "word_perplexity",
        },
        columns=("learned", "Binary16", "GF2"),
        published={
            "hellaswag": ("57.79", "52.40", "51.44"),
            "piqa": ("72.69", "70.51", "71.16"),
            "lambada_openai": ("47.72", "42.75", "42.29"),
            "arc_easy": ("66.04", "61.53", "60.73"),
            "commonsense_qa": ("about 20", "about 20", "about 20"),
            "mmlu": ("25-26", "25-26", "25-26"),
            "wikitext": ("16.50", "18.58", "19.03"),
        },
        note="paper B's columns are its own published results: 1.7B parameters, 100B tokens, one "
        "run each; nothing of them was run here",
    ),
}
