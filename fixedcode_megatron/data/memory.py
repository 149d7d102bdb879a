"""Memory of this process, as the operating system sees it."""

from __future__ import annotations

import contextlib
import ctypes
import os


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell it in this way."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def return_freed_memory() -> None:
    """Give back to the system what large objects left behind, where the C library can do that."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
