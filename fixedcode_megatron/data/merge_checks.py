"""What the summaries beside datasets say about merging them."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fixedcode_megatron.data.summary import read_summary
from fixedcode_megatron.errors import UserError


def check_summaries(
    prefixes: Sequence[str], *, mixed_tokenizers: bool, missing_shards: bool
) -> None:
    """Refuse what would double, lose or mix up documents; datasets without a summary pass.

    Raises
    ------
    UserError
        If an input was merged from another one, tokenizers differ, or shards of a run are missing.
    """
    summaries = {prefix: read_summary(prefix) for prefix in prefixes}
    known = {prefix: summary for prefix, summary in summaries.items() if summary is not None}
    _refuse_doubles(prefixes, known)
    if not mixed_tokenizers:
        _refuse_tokenizers(known)
    if not missing_shards:
        _refuse_missing_shards(known)


def _refuse_doubles(prefixes: Sequence[str], known: dict[str, dict[str, Any]]) -> None:
    here = {os.path.realpath(prefix): prefix for prefix in prefixes}
    for prefix, summary in known.items():
        inside = [here[part] for part in summary.get("merged_from", ()) if part in here]
        if inside:
            raise UserError(
                f"{prefix} was merged from {inside[0]}, which is an input too: its documents "
                "would occur twice; leave one of them out"
            )


def _refuse_tokenizers(known: dict[str, dict[str, Any]]) -> None:
    first: dict[str, str] = {}
    for prefix, summary in known.items():
        fingerprint = summary.get("tokenizer_fingerprint")
        if not fingerprint:
            continue
        first.setdefault(fingerprint, prefix)
        if len(first) > 1:
            one, other = first.values()
            raise UserError(
                f"{one} and {other} were made with different tokenizers (see their .json): ids "
                "would mean different things; --allow-mixed-tokenizers merges them"
            )


def _refuse_missing_shards(known: dict[str, dict[str, Any]]) -> None:
    """A task of a job array that failed must not pass unnoticed."""
    runs: dict[str, set[int]] = defaultdict(set)
    totals: dict[str, int] = {}
    for summary in known.values():
        index, total = summary.get("shard") or (0, 1)
        if total > 1:
            runs[_run(summary)].add(index)
            totals[_run(summary)] = total
    for summary in _empty_shards({Path(prefix).parent for prefix in known}):
        if (
            _run(summary) in runs
        ):  # of other runs, and of keys that are not merged, there may be some
            runs[_run(summary)].add(summary["shard"][0])
    for run, indices in runs.items():
        missing = sorted(set(range(totals[run])) - indices)
        if missing:
            shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            raise UserError(
                f"{len(missing)} of {totals[run]} shards of a preprocessing run are not among the "
                f"inputs (--shard-index {shown}): make them, or merge the others with "
                "--allow-missing-shards"
            )


def _run(summary: dict[str, Any]) -> str:
    """What the shards of one run and key have in common."""
    _, total = summary.get("shard") or (0, 1)
    return json.dumps([summary.get("key"), total, summary.get("inputs")])


def _empty_shards(folders: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Summaries of shards that had no documents, and so left no dataset."""
    for path in (path for folder in folders for path in folder.glob("*-of-*.json")):
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
            if (
                summary["documents"] == 0
                and summary["shard"]
                and not path.with_suffix(".idx").exists()
            ):
                yield summary
        except (OSError, ValueError, KeyError, TypeError):
            continue
