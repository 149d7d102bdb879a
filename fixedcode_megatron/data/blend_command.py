"""The command line of `tools/blend.py`."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from types import SimpleNamespace

from fixedcode_megatron.data.draws import as_dicts, as_table, draws, parse_tokens, without_repeats
from fixedcode_megatron.data.plans import plan_splits
from fixedcode_megatron.data.tool_runner import run_tool
from fixedcode_megatron.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Print what a blend will draw."""
    arguments = _parser().parse_args(argv)
    return run_tool(lambda: _work(arguments), writes=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Print what training will draw from each dataset of a blend: samples, tokens "
        "and epochs. Reads the .idx files only; the flags are those of training.",
        epilog="example: blend.py --data-path 0.8 fineweb_edu 0.2 cosmopedia --seq-length 2048 "
        "--tokens 100B",
    )
    parser.add_argument(
        "--data-path", nargs="+", metavar="WEIGHT PREFIX", help="as for training, with --split"
    )
    parser.add_argument(
        "--train-data-path", nargs="+", metavar="WEIGHT PREFIX", help="as for training"
    )
    parser.add_argument("--split", default="969,30,1", help="shares of documents (%(default)s)")
    parser.add_argument("--seq-length", type=int, required=True, help="tokens in a sample")
    size = parser.add_argument_group("length of the training, one of")
    size.add_argument("--tokens", help="tokens to train on, such as 100B")
    size.add_argument("--train-samples", type=int)
    size.add_argument("--train-iters", type=int, help="with --global-batch-size")
    parser.add_argument("--global-batch-size", type=int, help="samples in an iteration")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    return parser


def _work(arguments: argparse.Namespace) -> None:
    if arguments.seq_length < 1:
        raise UserError(f"--seq-length {arguments.seq_length}: must be at least 1")
    samples = _samples(arguments)
    data = SimpleNamespace(
        data_path=arguments.data_path,
        train_data_path=arguments.train_data_path,
        split=arguments.split,
    )
    plan = plan_splits(data, (samples, 0, 0), arguments.seq_length)[0]
    if plan is None:
        raise UserError(f"--split {arguments.split} has no training documents")
    parts = draws(plan, arguments.seq_length)
    if arguments.json:
        print(json.dumps(as_dicts(parts), indent=1))
        return
    print(as_table(parts))
    print(f"no dataset repeats before {without_repeats(parts):,} tokens")
    if arguments.global_batch_size:
        iterations = samples // arguments.global_batch_size
        print(f"{iterations:,} iterations of {arguments.global_batch_size} samples")


def _samples(arguments: argparse.Namespace) -> int:
    given = {
        "--tokens": arguments.tokens,
        "--train-samples": arguments.train_samples,
        "--train-iters": arguments.train_iters,
    }
    named = [flag for flag, value in given.items() if value is not None]
    if len(named) != 1:
        found = " and ".join(named) or "none"
        raise UserError(f"give one of {', '.join(given)}; found {found}")
    if arguments.tokens is not None:
        samples = math.ceil(parse_tokens(arguments.tokens) / arguments.seq_length)
    elif arguments.train_samples is not None:
        samples = arguments.train_samples
    else:
        if not arguments.global_batch_size:
            raise UserError("--train-iters needs --global-batch-size")
        samples = arguments.train_iters * arguments.global_batch_size
    if samples < 1:
        raise UserError(f"{named[0]}: must be at least 1")
    return samples
