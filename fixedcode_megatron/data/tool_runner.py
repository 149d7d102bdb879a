"""Run a data tool as a program: mistakes become one line, signals a clean end."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable

from fixedcode_megatron.errors import UserError


def run_tool(work: Callable[[], int | None], *, writes: bool) -> int:
    """Run `work` and return an exit status: its own, or 1 with one line for a mistake.

    SIGTERM ends through the same clean-up as Ctrl-C, so no temporary file stays behind.

    Parameters
    ----------
    writes
        Whether to say, when it fails, that no output was left.
    """
    gc.set_threshold(100_000)  # tokenizers are many objects and no cycles
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    nothing = "; nothing was left at the output prefix" if writes else ""

    def terminate(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set aside by `workers.boot`
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = work() or 0
        gc.freeze()  # nothing to look through once more at the end
        return status
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `inspect ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"error: {error}{nothing}", file=sys.stderr)
        return 1
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "start new thread" not in str(error):
            raise
        print(
            f"error: memory or threads ran out ({str(error) or 'MemoryError'}): allow this job "
            f"more (`ulimit -v`, `ulimit -u`), or give fewer --workers{nothing}",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(f"interrupted{nothing}", file=sys.stderr)
        return 130
