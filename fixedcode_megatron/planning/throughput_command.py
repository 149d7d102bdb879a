"""`tools/profile_throughput.py`: learned table and fixed codes, measured in turns."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fixedcode_megatron.config import checks_graphs
from fixedcode_megatron.config.sections import INPUT_INTERFACES
from fixedcode_megatron.errors import TrainingError, UserError
from fixedcode_megatron.option_values import count, file_to_write

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig

_DESCRIPTION = """
Measure training speed, memory and energy of several input interfaces on one model and one data
stream, in interleaved rounds. Any flag of pretraining can follow (--config PRESET, ...). Runs on
CPUs and GPUs, alone or under torchrun; the data are made up.
"""
_DEFAULT = ("learned", "binary", "gf2", "binary+fold")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit status."""
    from fixedcode_megatron import pretrain
    from fixedcode_megatron import runtime as run_time
    from fixedcode_megatron.config import report

    pretrain._configure_logging()
    options, training_flags = _parser().parse_known_args(argv)
    try:
        _check_names(options.variants)
        return _run(options, _config(training_flags))
    except UserError as error:
        return report(error)
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        run_time.shutdown()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="profile_throughput.py", description=_DESCRIPTION, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--variants",
        nargs="+",
        default=list(_DEFAULT),
        help=f"interfaces, +fold for first-layer folding [default: {' '.join(_DEFAULT)}]",
    )
    add("--rounds", type=count, default=5, help="rounds [default: 5]")
    add("--steps", type=count, default=5, help="timed steps a round and variant [default: 5]")
    add("--warmup", type=count, default=2, help="steps before them [default: 2]")
    add("--rebuild", action="store_true", help="hold one variant at a time (large models)")
    add(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: time of this process alone, for a shared machine without GPUs",
    )
    add("--csv", type=file_to_write, help="write every round here")
    add("--plot", type=file_to_write, help="draw the figure here (needs matplotlib)")
    return parser


def _check_names(names: list[str]) -> None:
    for name in names:
        base, plus, rest = name.partition("+")
        if base not in INPUT_INTERFACES or (plus and rest != "fold"):
            raise UserError(
                f"--variants {name}: unknown; use {', '.join(INPUT_INTERFACES)}, or one of them "
                "with +fold"
            )


def _config(training_flags: list[str]) -> RunConfig:
    from fixedcode_megatron.config import parse_args

    # What a run needs and a measurement does not: data, a length, a learning rate.
    defaults = ["--data-path", "made-up", "--train-iters", "1000000", "--lr", "1e-4"]
    defaults += ["--min-lr", "0"]
    cfg = parse_args([*defaults, *training_flags, "--prepare-data", "none"])
    if checks_graphs.wanted(cfg):
        raise UserError(
            "--cuda-graph-impl: this tool times steps without CUDA graphs; leave it out "
            "(tools/gpu_check.sh times a model with and without)"
        )
    return cfg


def _run(options: argparse.Namespace, cfg: RunConfig) -> int:
    from fixedcode_megatron import runtime as run_time
    from fixedcode_megatron.planning.throughput import measure
    from fixedcode_megatron.planning.throughput_report import draw, table, write_csv

    runtime = run_time.initialize(cfg)
    found = measure(
        cfg,
        runtime,
        options.variants,
        rounds=options.rounds,
        steps=options.steps,
        warmup=options.warmup,
        rebuild=options.rebuild,
        clock=time.perf_counter if options.clock == "wall" else time.process_time,
    )
    if runtime.rank == 0:
        print(table(found))
        if options.csv:
            write_csv(found, options.csv)
        if options.plot:
            draw(found, options.plot)
    return 0
