"""One exception that carries every problem of a configuration."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from fixedcode_megatron.errors import UserError

EXIT_STATUS = 2
"""What a program exits with after a user's mistake, as argparse does."""


class ConfigError(UserError):
    """All problems found in flags and presets.

    Attributes
    ----------
    problems
        One line each, naming the flag, the value found and a value that would work.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def report(error: UserError, stream: TextIO | None = None) -> int:
    """Print ``error: ...`` for each problem, without a traceback, and return the exit status.

    Entry points use it as ``except UserError as e: return report(e)``.
    """
    for problem in getattr(error, "problems", None) or [str(error)]:
        print(f"error: {problem}", file=stream or sys.stderr)
    return EXIT_STATUS
