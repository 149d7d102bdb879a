"""Engines to try, and the proof on the user's own documents against HF tokenizers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fixedcode_megatron.data.characters import categories
from fixedcode_megatron.data.documents import Records
from fixedcode_megatron.data.engines import (
    ENGINES,
    EngineError,
    EngineMismatch,
    EnginePlan,
    plan_engine,
)
from fixedcode_megatron.data.tokenizers import Tokenizer
from fixedcode_megatron.errors import UserError

_MAX_SPELLINGS = 500
_ATOMS = (
    *("a", "Z", " the", "é", "e\u0301", "ß", "ı", "İ", "ﬁ", "漢", "한", "😀", "👨\u200d👩", "𝟙"),
    *(" ", "  ", "\n", "\n\n", "\t", "\r\n", "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\xa0"),
    *("\u2003", "\u2028", "\u3000", "\u200b", "\ufeff", "\x00", "\x04", "\x7f", "\ud7ff", "\uffff"),
    *("0", "12", "9", " 1", "  1", "\n1", "½", "²", "①", "٣", "Ⅷ", "〇"),
    *("'", "'s", "'S", "'ll", "’", ".", ",", "--", "_", "<|", "|>", "</s>", "<|endoftext|>"),
)


def probes(spellings: Sequence[str] = ()) -> list[str]:
    """Short texts of everything that splitters stumble over, the same on every run.

    Parameters
    ----------
    spellings
        Of tokens that stand outside the model proper, see `Tokenizer.added_spellings`.
    """
    rng = random.Random(5)
    mixed = ["".join(rng.choices(_ATOMS, k=rng.randint(1, 30))) for _ in range(300)]
    long = ["x" * 3000, " " * 1000 + "1", "ab" * 2000, "1" * 500, "\n" * 700 + "9", "", " "]
    codes, names = categories()
    numbers = map(chr, codes[(names[:, 0] == ord("N")) & (codes < 0x20000)].tolist())
    around = [f"{s}{s} a{s}b  {s}\n{s[:-1]} {s.upper()}" for s in spellings[:_MAX_SPELLINGS]]
    newest = "\u088f's \u0c5c's \U000323b0's"  # letters since Unicode 17
    return [*mixed, *long, " a".join(numbers), newest, *around]


def candidates(tokenizer: Tokenizer, wanted: str) -> list[EnginePlan | None]:
    """Engines to try, in this order; the last one is None, HF tokenizers: the tokenizer itself.

    Parameters
    ----------
    wanted
        `--tokenizer-engine`: "auto" means every engine that is installed and may do this
        tokenizer.

    Raises
    ------
    UserError
        If an engine asked for by name is unknown, missing or cannot do the tokenizer.
    """
    if wanted not in ("auto", "hf", *ENGINES):
        known = f"auto, hf, {' or '.join(ENGINES)}"
        raise UserError(f"--tokenizer-engine {wanted} is unknown: give {known}")
    names = ENGINES if wanted == "auto" else (wanted,) if wanted != "hf" else ()
    try:
        plan = plan_engine(tokenizer, names[0]) if names else None
    except EngineError as error:
        if wanted != "auto":
            raise unusable(wanted, error) from error
        return [None]
    return [*(replace(plan, engine=name) for name in names if plan), None]


def unusable(engine: str, error: EngineError) -> UserError:
    """The error for an engine that was asked for by name."""
    return UserError(f"--tokenizer-engine {engine}: {error}; or give --tokenizer-engine auto")


def compare(
    texts: Sequence[str], expected: Sequence[list[int]], found: Sequence[np.ndarray]
) -> None:
    """Compare an engine's ids of texts, `found`, with the tokenizer's own.

    Raises
    ------
    EngineMismatch
        At the first difference.
    """
    for text, ids, array in zip(texts, expected, found, strict=True):
        own = array.tolist()
        if own != ids:
            first = next((i for i, (a, b) in enumerate(zip(own, ids, strict=False)) if a != b), 0)
            raise EngineMismatch(
                f"its ids differ from HF tokenizers' in a text that begins {text[:40]!r} "
                f"(token {first}: {own[first : first + 3]} for {ids[first : first + 3]})"
            )


@dataclass(frozen=True)
class Sample:
    """What a worker encodes before anything else, so that the parent can compare."""

    texts: list[str]

    def read(self, keys: Sequence[str]) -> Records:
        return Records([self.texts] * len(keys))
