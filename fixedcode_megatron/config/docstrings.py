"""Help texts of megatron-core's fields, taken from the string below each field in its source."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap


def field_docs(cls: type) -> dict[str, str]:
    """Return ``{field name: text}`` for a dataclass and its bases; empty without the source.

    Only ``--help`` needs this: it parses source files.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
            (body,) = [n.body for n in ast.parse(source).body if isinstance(n, ast.ClassDef)]
        except (OSError, TypeError, ValueError, SyntaxError):
            continue
        for statement, after in itertools.pairwise(body):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                found[statement.target.id] = _first_sentences(after.value.value)
    return found


def _first_sentences(text: str, limit: int = 220) -> str:
    """Return the beginning of a docstring on one line, cut after a sentence."""
    text = re.sub(r"\s+", " ", text).strip()
    if len(text) <= limit:
        return text
    end = text.rfind(". ", 0, limit)
    return text[: end + 1] if end > 0 else text[: text.rfind(" ", 0, limit)] + " ..."
