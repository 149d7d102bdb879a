"""The README.md of an exported model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fixedcode_megatron.interop.forms import TABLE_FREE
from fixedcode_megatron.interop.pieces import Form
from fixedcode_megatron.interop.source import Source
from fixedcode_megatron.training.metrics_file import METRICS_FILE, read_history

_INPUTS = {
    "learned": "a trained embedding table",
    "binary": "the binary digits of the token's id, repeated up to the model's width; not trained",
    "gf2": "the binary digits of the token's id times an invertible matrix over GF(2), repeated up "
    "to the model's width; not trained",
    "random": "fixed random numbers of the code's width, repeated up to the model's width",
    "lowdim": "a trained table of the code's width, repeated up to the model's width",
}


def model_card(source: Source, form: Form, elements: int) -> str:
    """Parameters, input, data and results of a model, as Markdown.

    Parameters
    ----------
    elements
        How many elements the exported tensors have.
    """
    a, common = source.architecture, source.common
    trained = elements - sum(form.zeros.values())
    if form.table is not None and a.interface != "learned":
        trained -= a.vocab_size * a.hidden_size
        if a.interface == "lowdim":
            assert a.code is not None
            trained += a.vocab_size * a.code.num_bits  # so much of the table was trained
    facts = [
        ("architecture", form.config["architectures"][0]),
        ("trained parameters", f"{trained:,}"),
        ("layers, width, heads", f"{a.num_layers}, {a.hidden_size}, {a.num_heads}"),
        ("key and value heads", a.num_groups),
        ("vocabulary", f"{a.vocab_size:,}"),
        ("longest sequence", a.max_positions),
        ("input", _INPUTS[a.interface]),
        *_training(common),
        *_results(source.path.parent, common["iteration"]),
    ]
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation", "---", ""]
    lines += ["# Model card", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in facts]
    lines += ["", *_usage(form, a.interface), ""]
    if common["token_code"] is not None:
        code = json.dumps(json.loads(common["token_code"]), indent=1)
        lines += ["## Token code", "", "```json", code, "```", ""]
    return "\n".join(lines)


def _training(common: dict[str, Any]) -> list[tuple[str, Any]]:
    saved, state = common["config"], common.get("train_state", {})
    names = [
        Path(part).name for part in saved.get("data_path") or saved.get("train_data_path") or ()
    ]
    facts: list[tuple[str, Any]] = [("iterations", f"{common['iteration']:,}")]
    facts += [("training data", " ".join(names))] if names else []
    tokens = state.get("consumed_tokens")
    return facts + ([("training tokens", f"{tokens:,}")] if tokens else [])


def _results(root: Path, iteration: int) -> list[tuple[str, Any]]:
    """The last evaluation up to the checkpoint's iteration, where the run's figures lie beside."""
    rows = read_history(root / METRICS_FILE).validation
    found = [row for row in rows if row["iteration"] <= iteration]
    if not found:
        return []
    figures = [(n, found[-1][n]) for n in ("lm loss", "lm loss PPL")]
    return [(f"validation {n}", "not finite" if x is None else f"{x:.4g}") for n, x in figures]


def _usage(form: Form, interface: str) -> list[str]:
    trust = ", trust_remote_code=True" if form.config["architectures"] == [TABLE_FREE] else ""
    lines = ["```python", f"AutoModelForCausalLM.from_pretrained(FOLDER{trust})", "```"]
    if form.table is not None and interface != "learned":
        lines += [
            "",
            "The input table holds what the code computes. Keep it frozen when you train on: "
            "`model.get_input_embeddings().requires_grad_(False)`.",
        ]
    return lines
