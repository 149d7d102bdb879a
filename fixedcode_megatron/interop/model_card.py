"""The README.md of an exported model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fixedcode_megatron.interop.source import Source

_INPUTS = {
    "learned": "a trained embedding table",
    "binary": "the binary digits of the token's id, repeated up to the model's width; not trained",
    "gf2": "the binary digits of the token's id times an invertible matrix over GF(2), repeated up "
    "to the model's width; not trained",
    "random": "fixed random numbers of the code's width, repeated up to the model's width",
    "lowdim": "a trained table of the code's width, repeated up to the model's width",
}


def model_card(source: Source, kind: str, architecture: str, elements: int) -> str:
    """Parameters, input, data and results of a model, as Markdown."""
    a, common = source.architecture, source.common
    table = 0
    if kind == "plain" and a.interface != "learned":
        table = a.vocab_size * a.hidden_size
    if a.interface == "lowdim" and table:
        assert a.code is not None
        table -= a.vocab_size * a.code.num_bits  # so much of it was trained
    facts = [
        ("architecture", architecture),
        ("trained parameters", f"{elements - table:,}"),
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
    lines += ["", *_usage(kind, a.interface), ""]
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
    path = root / "metrics.jsonl"
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
    found = [r for r in rows if r["kind"] == "validation" and r["iteration"] <= iteration]
    if not found:
        return []
    return [(f"validation {n}", f"{found[-1][n]:.4g}") for n in ("lm loss", "lm loss PPL")]


def _usage(kind: str, interface: str) -> list[str]:
    trust = ", trust_remote_code=True" if kind == "table-free" else ""
    lines = ["```python", f"AutoModelForCausalLM.from_pretrained(FOLDER{trust})", "```"]
    if kind == "plain" and interface != "learned":
        lines += [
            "",
            "The input table holds what the code computes. Keep it frozen when you train on: "
            "`model.get_input_embeddings().requires_grad_(False)`.",
        ]
    return lines
