"""Checks of data paths and tokenizer, as far as they go without opening files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fixedcode_megatron.config.options import flag_of

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig

_PER_SPLIT = ("train_data_path", "valid_data_path", "test_data_path")


def missing(cfg: RunConfig) -> list[str]:
    """No data, or nothing that tells the vocabulary."""
    data, problems = cfg.data, []
    if data.sft:
        problems += _missing_conversations(cfg)
    elif not data.data_path and not data.train_data_path:
        problems.append(
            "--data-path: missing; give PREFIX of PREFIX.bin and PREFIX.idx (see "
            "tools/preprocess_data.py), or try --config quickstart"
        )
    if not (data.tokenizer_type or data.tokenizer_model or cfg.model.vocab_size):
        problems.append(
            "--tokenizer-model or --vocab-size: missing; give the tokenizer the data was made "
            "with, or the number of token ids"
        )
    return problems


def _missing_conversations(cfg: RunConfig) -> list[str]:
    data = cfg.data
    held_out = data.valid_data_path or data.test_data_path
    if data.data_path or data.train_data_path or (cfg.training.skip_train and held_out):
        return []
    return [
        "--train-data-path: missing; --sft takes files of JSON lines, each a conversation (see "
        "docs/sft.md)"
    ]


def check(cfg: RunConfig) -> list[str]:
    """Paths that cannot be right, blends that do not add up, a split that is none."""
    data, problems = cfg.data, []
    if data.data_path and any(getattr(data, name) for name in _PER_SPLIT):
        problems.append(
            "--data-path and --train-data-path or its like exclude each other: drop one "
            "(--data-path none drops a preset's)"
        )
    for name in ("data_path", *_PER_SPLIT):
        check_paths = _conversation_files if data.sft else _blend
        problems += check_paths(flag_of(name), getattr(data, name) or [])
    if data.sft:
        _notice_what_packing_decides(cfg)
    if data.sft and data.prepare_data != "none":
        problems.append(
            f"--prepare-data {data.prepare_data}: makes no conversations; with --sft use none"
        )
    elif data.prepare_data != "none" and (not data.data_path or len(data.data_path) != 1):
        problems.append(f"--prepare-data {data.prepare_data}: needs one PREFIX in --data-path")
    return problems + _split(data.split)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _blend(flag: str, entries: list[str]) -> list[str]:
    """Check PREFIX, or WEIGHT PREFIX pairs: megatron-core takes an odd list for prefixes alone."""
    weighted = len(entries) > 1 and any(_is_number(e) for e in entries)
    prefixes = entries[1::2] if weighted else entries
    problems = []
    if weighted:
        weights = entries[0::2]
        bad = [w for w in weights if not _is_number(w) or float(w) < 0]
        if len(entries) % 2 or bad or any(_is_number(p) for p in prefixes):
            problems.append(
                f"{flag} {' '.join(entries)}: a blend is WEIGHT PREFIX WEIGHT PREFIX ..., weights "
                "of 0 or more"
            )
            return problems
        if sum(float(w) for w in weights) == 0:
            problems.append(f"{flag}: all weights are 0; give one that is not")
    for prefix in prefixes:
        if prefix.endswith((".bin", ".idx")):
            problems.append(f"{flag} {prefix}: give the prefix without .bin/.idx: {prefix[:-4]}")
        elif Path(prefix).is_dir() and not Path(prefix + ".bin").exists():
            problems.append(
                f"{flag} {prefix}: is a folder; give the prefix of the .bin and .idx files in it"
            )
    return problems


def _conversation_files(flag: str, entries: list[str]) -> list[str]:
    problems = []
    for entry in entries:
        if _is_number(entry) and not Path(entry).exists():
            problems.append(
                f"{flag} {entry}: --sft takes no weights, each conversation is read once a pass; "
                "give files alone"
            )
        elif entry.endswith((".bin", ".idx")) or Path(f"{entry}.idx").exists():
            problems.append(
                f"{flag} {entry}: --sft takes files of JSON lines, not indexed datasets; give "
                "the .jsonl file"
            )
        elif Path(entry).is_dir():
            problems.append(f"{flag} {entry}: is a folder; give the .jsonl files in it")
    return problems


def _notice_what_packing_decides(cfg: RunConfig) -> None:
    for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"):
        if getattr(cfg.data, name):
            cfg.notices.append(
                f"{flag_of(name)} has no effect with --sft: conversations are always kept apart, "
                "and answers alone count"
            )


def _split(split: str) -> list[str]:
    shares = split.split(",")
    if len(shares) > 3 or not all(_is_number(s) and float(s) >= 0 for s in shares):
        return [f"--split {split}: takes three shares of 0 or more, for example 969,30,1"]
    if sum(map(float, shares)) == 0:
        return [f"--split {split}: at least one share must be above 0"]
    return []
