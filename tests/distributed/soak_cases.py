"""A run that looks at its own process after every iteration."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import psutil

from tests.distributed.cases import run_main


def _anonymous() -> int:
    """Resident bytes that belong to no file: pages of files come and go with the machine's load."""
    with open("/proc/self/status", encoding="ascii") as file:
        [line] = [line for line in file if line.startswith("RssAnon")]
    return 1024 * int(line.split()[1])


def watched(argv: list[str]) -> tuple[int, dict[str, list[int]]]:
    """`run_main`, and what the process held after each iteration.

    Returns
    -------
    status, samples
        By name: anonymous resident bytes, open files, threads (the operating system's and Python's)
        and child processes.
    """
    from fixedcode_megatron.training import loop

    original = loop.train_step
    process = psutil.Process()
    samples: dict[str, list[int]] = {
        name: [] for name in ("resident", "files", "threads", "python threads", "children")
    }

    def step(*args: Any) -> Any:
        result = original(*args)
        if len(samples["files"]) % 10 == 0:
            gc.collect()  # what is garbage in cycles is none of a run's growth
        samples["resident"].append(_anonymous())
        samples["files"].append(len(os.listdir("/proc/self/fd")))
        samples["threads"].append(len(os.listdir("/proc/self/task")))
        samples["python threads"].append(threading.active_count())
        samples["children"].append(len(process.children(recursive=True)))
        return result

    loop.train_step = step
    return run_main(argv), samples
