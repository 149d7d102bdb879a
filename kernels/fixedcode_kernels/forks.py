"""Whether this process is the forked child of one that had imported the package.

OpenMP's threads do not outlive a fork, and a child that asks for them waits for ever; checkpoint
writers and data loader workers are such children.
"""

from __future__ import annotations

import os

_in_child = False


def _note() -> None:
    global _in_child
    _in_child = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note)


def in_child() -> bool:
    """Return whether threads must not be started."""
    return _in_child
