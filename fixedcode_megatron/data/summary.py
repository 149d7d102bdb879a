"""The JSON summary beside a dataset, and what may be believed of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fixedcode_megatron.data.files import write_text_whole
from fixedcode_megatron.data.index_format import bin_path, summary_path

# What holds for a whole dataset if it holds for each of its parts.
_COMMON = ("tokenizer", "tokenizer_fingerprint", "vocab_size", "append_eod", "eod")


def read_summary(prefix: str) -> dict[str, Any] | None:
    """The summary of a dataset, or None where there is none or it describes another file."""
    try:
        summary = json.loads(summary_path(prefix).read_text(encoding="utf-8"))
        if summary["bin_bytes"] == bin_path(prefix).stat().st_size:
            return summary
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def common_facts(prefixes: Sequence[str]) -> dict[str, Any]:
    """Tokenizer and end-of-document facts that all summaries of `prefixes` agree on."""
    summaries = [read_summary(prefix) for prefix in prefixes]
    known = [summary for summary in summaries if summary is not None]
    if not known or len(known) < len(summaries):
        return {}
    return {
        key: known[0][key]
        for key in _COMMON
        if key in known[0] and all(each.get(key) == known[0][key] for each in known)
    }


def write_summary(prefix: str, facts: dict[str, Any]) -> None:
    """Write the summary of a dataset, whole or not at all."""
    write_text_whole(summary_path(prefix), json.dumps({**facts, **_written_by()}, indent=1) + "\n")


def _written_by() -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version  # not at the start: 10 ms

    try:
        return {"versions": {"fixedcode-megatron": version("fixedcode-megatron")}}
    except PackageNotFoundError:
        return {"versions": {}}
