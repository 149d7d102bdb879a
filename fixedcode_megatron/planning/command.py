"""`tools/plan_training.py`: layouts, memory, speed and cost of a run before it is paid for."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import logging
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.option_values import amount, count, file_to_write

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig
    from fixedcode_megatron.planning.hardware import Gpu
    from fixedcode_megatron.planning.plan import Plan

_DESCRIPTION = """
Plan a run: searches tensor, pipeline, context and data parallelism, micro-batch size and recompute
for the fastest layout that fits, and prints memory, communication, predicted speed and cost for a
fixed and a learned input interface side by side. Any flag of pretraining can follow
(--config PRESET, --precision, --global-batch-size ...). Needs no GPU.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the planner; returns the exit status."""
    logging.getLogger("megatron").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    options, training_flags = _parser().parse_known_args(argv)
    from fixedcode_megatron.config import report

    try:
        if options.published:
            from fixedcode_megatron.planning.published import table

            print(table())
        else:
            _plan(options, training_flags)
    except UserError as error:
        return report(error)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plan_training.py", description=_DESCRIPTION, allow_abbrev=False
    )
    add = parser.add_argument
    add("--gpus", type=count, nargs="+", default=[8], help="numbers of GPUs [default: 8]")
    add("--gpu", choices=("a100", "h100", "h200"), default="h100", help="[default: h100]")
    add("--memory-gib", type=amount, help="memory of a GPU, where it is not the usual")
    add("--price", type=amount, help="US dollars a GPU-hour [assumed: a100 1.5, h100 2.5, h200 3]")
    add("--tokens", type=amount, help="token budget, 100e9 [default: the preset's own length]")
    add("--top", type=count, default=1, help="layouts to show for each number of GPUs")
    add("--keep-layout", action="store_true", help="estimate the flags' own layout; do not search")
    add("--rehearse", action="store_true", help="build the first layout's ranks on fake tensors")
    add("--published", action="store_true", help="compare predictions with published step times")
    add("--csv", type=file_to_write, help="write all figures here")
    add("--plot", type=file_to_write, help="draw step time and memory here (needs matplotlib)")
    return parser


def _plan(options: argparse.Namespace, training_flags: list[str]) -> None:
    from fixedcode_megatron.planning.hardware import GIB, GPUS
    from fixedcode_megatron.planning.tables import details, draw, overview, rows

    gpu = GPUS[options.gpu]
    if options.memory_gib:
        gpu = dataclasses.replace(gpu, memory=int(options.memory_gib * GIB))
    price = gpu.price if options.price is None else options.price
    pairs: list[tuple[Plan, Plan]] = []
    for world_size in options.gpus:
        # A search replaces the flags' layout, which need not divide this number of GPUs.
        cfg = _config(training_flags, world_size if options.keep_layout else 1)
        pairs += _pairs(cfg, gpu, world_size, options)
    cfg = pairs[0][0].cfg
    tokens = options.tokens or _token_budget(cfg)
    print(
        f"{tokens / 1e9:,.1f}B tokens, {cfg.training.global_batch_size} sequences of "
        f"{cfg.model.seq_length} a step, {gpu.name} with {gpu.memory / GIB:.0f} GiB"
    )
    print(overview(pairs, tokens, price))
    print("\n" + details(*pairs[0]))
    if options.rehearse:
        print("\n" + _rehearsals(pairs[0]))
    if options.csv:
        found = rows(pairs, tokens, price)
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]))
            writer.writeheader()
            writer.writerows(found)
    if options.plot:
        draw(pairs, options.plot)


def _config(training_flags: list[str], world_size: int) -> RunConfig:
    from fixedcode_megatron.config import parse_args

    # As for printing a configuration: nothing needs to be there yet, neither data nor GPU.
    return parse_args([*training_flags, "--print-config"], world_size=world_size)


def _pairs(
    cfg: RunConfig, gpu: Gpu, world_size: int, options: argparse.Namespace
) -> list[tuple[Plan, Plan]]:
    from fixedcode_megatron.planning.plan import make_plan, with_interface
    from fixedcode_megatron.planning.search import search

    plans = (
        [make_plan(cfg, gpu, world_size)]
        if options.keep_layout
        else search(cfg, gpu, world_size, count=options.top)
    )
    fixed = cfg.input.input_interface if cfg.input.input_interface != "learned" else "binary"
    return [(with_interface(plan, fixed), with_interface(plan, "learned")) for plan in plans]


def _token_budget(cfg: RunConfig) -> float:
    t = cfg.training
    assert t.global_batch_size is not None
    samples = t.train_samples or (t.train_iters or 0) * t.global_batch_size
    if not samples:
        raise UserError("give --tokens, or --train-iters")
    return float(samples * cfg.model.seq_length)


def _rehearsals(pair: tuple[Plan, Plan]) -> str:
    """Estimates beside what the real program does, for the first and the last stage."""
    from fixedcode_megatron.planning.compare import compare

    lines = ["the real program, built as one rank on fake tensors"]
    for plan in pair:
        stages = sorted({0, plan.rank.pp - 1})
        for stage in stages:
            rank = stage * (plan.world_size // plan.rank.pp)
            lines += [f"  {plan.cfg.input.input_interface}, rank {rank}"]
            lines += [f"    {line}" for line in compare(plan.cfg, plan.world_size, rank)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
