"""Build the sample indices of a training run ahead of time, on a machine without GPUs."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

from fixedcode_megatron.data.tool_runner import run_tool
from fixedcode_megatron.errors import UserError

_HELP = """\
usage: build_sample_index.py [--world-size N] FLAGS_OF_THE_TRAINING_RUN

Build the sample indices of a training run ahead of time, for example on a node without GPUs, so
that the run starts at once and no rank waits for rank 0. Takes the run's own command line (also
--config PRESET) and needs of it:

  --data-path (with --split), or --train-data-path, --valid-data-path, --test-data-path
  --seq-length, --seed
  --train-iters or --train-samples, --global-batch-size, --eval-iters
  the tokenizer flags
  --data-cache-path FOLDER    must be seen by the training nodes under the same name
  --world-size N              ranks of the run, where --global-batch-size is left to be derived

All other flags are accepted and left alone; nothing is checked against this machine. The run finds
the indices by what they were built from: sizes and times of the data files, --seq-length, --seed,
the blend, the numbers of samples, the tokenizer and megatron-core's version. If one of these
differs, it builds its own. Datasets are named by their path: give it as the run will.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Build the indices that a command line needs; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or "--help" in words or "-h" in words:
        print(_HELP, end="")
        return 0
    return run_tool(lambda: prebuild(words), writes=False)


def prebuild(words: Sequence[str]) -> None:
    """Build and report.

    Raises
    ------
    UserError
        For flags that do not read or are missing, and as `build_datasets`.
    """
    words, world_size = _world_size(words)
    # It warns of everything that is not installed, which does not matter here.
    logging.getLogger("megatron").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    from fixedcode_megatron.config.cli import read
    from fixedcode_megatron.config.problems import ConfigError
    from fixedcode_megatron.data.datasets import build_datasets
    from fixedcode_megatron.pretrain import load_tokenizer, vocab_size
    from fixedcode_megatron.training.schedule import wanted_samples

    cfg, problems = read(words)
    if problems:
        raise ConfigError(problems)
    _need_batch_size(cfg, world_size)
    tokenizer = load_tokenizer(cfg)
    started = time.monotonic()
    built = build_datasets(
        cfg.data,
        tokenizer,
        seq_length=cfg.model.seq_length,
        seed=cfg.training.seed,
        samples=wanted_samples(cfg),
        vocab_size=vocab_size(cfg, tokenizer),
    )
    names = zip(("train", "valid", "test"), built, strict=True)
    ready = [f"{name} {len(dataset):,}" for name, dataset in names if dataset is not None]
    print(f"samples: {', '.join(ready)}; {time.monotonic() - started:.1f} s")


def _world_size(words: Sequence[str]) -> tuple[list[str], int | None]:
    """Take `--world-size N` out of the flags: training learns it from its launcher."""
    kept: list[str] = []
    size = None
    given = iter(words)
    for word in given:
        flag, _, value = word.partition("=")
        if flag != "--world-size":
            kept.append(word)
            continue
        value = value or next(given, "")
        if not value.isdigit() or int(value) < 1:
            raise UserError(f"--world-size {value}: give the number of ranks, such as 64")
        size = int(value)
    return kept, size


def _need_batch_size(cfg: Any, world_size: int | None) -> None:
    from fixedcode_megatron.config.derive import data_parallel_size

    training = cfg.training
    if training.train_iters is None and training.train_samples is None and not training.skip_train:
        raise UserError("give the run's --train-iters or --train-samples")
    if training.global_batch_size is not None:
        return
    if world_size is None:
        raise UserError(
            "the samples follow from the global batch size: give the run's --global-batch-size, or "
            "--world-size, the number of its ranks"
        )
    copies = data_parallel_size(cfg, world_size)
    cfg.set("global_batch_size", training.micro_batch_size * copies)
