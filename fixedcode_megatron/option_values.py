"""Values of tools' own options, as argparse types: each mistake is refused by the option's name."""

from __future__ import annotations

import argparse
import math
from pathlib import Path


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number of at least 1")
    return int(text)


def amount(text: str) -> float:
    """A finite number above 0, such as 100e9."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: give a number above 0, such as 2.5 or 100e9")
    return value


def file_to_write(text: str) -> Path:
    """A file that need not exist, in a folder that must."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        reason = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise argparse.ArgumentTypeError(f"{text}: {reason}; give a file in a folder that exists")
    return path
