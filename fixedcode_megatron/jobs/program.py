"""What the programs that train several models have in common: output, signals, exit status."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable

from fixedcode_megatron import runtime
from fixedcode_megatron.errors import UserError


def run_program(work: Callable[[], None]) -> int:
    """Do `work`, with messages on stdout and nothing about what megatron-core misses at import.

    Returns
    -------
    int
        0 when all is done, 2 after a mistake, 128 + its number after a signal.
    """
    logging.basicConfig(format="  %(message)s", level=logging.INFO, stream=sys.stdout)
    logging.getLogger("megatron").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    from fixedcode_megatron.jobs.training import Interrupted

    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        work()
    except UserError as error:
        print("\n".join(f"error: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return 2
    except (Interrupted, KeyboardInterrupt) as stop:
        print("\nstopped: run the same command again to continue", flush=True)
        return 128 + (stop.number if isinstance(stop, Interrupted) else signal.SIGINT)
    except BrokenPipeError:
        # Whoever read the output (head, say) has seen enough: nothing more can be written to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    finally:
        runtime.shutdown()
    return 0
