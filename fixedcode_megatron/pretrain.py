"""The entry point: `python -m fixedcode_megatron.pretrain FLAGS`, alone or under torchrun."""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fixedcode_megatron import runtime as run_time
from fixedcode_megatron.errors import TrainingError, UserError

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig
    from fixedcode_megatron.data.tokenizers import Tokenizer
    from fixedcode_megatron.runtime import Runtime
    from fixedcode_megatron.training.loop import Feeds

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Train what the flags say; returns the exit status.

    0 after a complete run (or one that an interval or time limit ended), 1 after a run that could
    not go on, 2 after a mistake of the user's, 128 + the signal's number after a run that a signal
    ended, with its checkpoint saved.
    """
    _configure_logging()
    # Imported here, for megatron-core warns at import of everything that is not installed.
    from fixedcode_megatron.config import parse_args

    try:
        return run(parse_args(argv))
    except UserError as error:
        return _report(error)
    except TrainingError as error:
        return _report_training(error)
    finally:
        run_time.shutdown()


def run(cfg: RunConfig) -> int:
    """Do what a resolved configuration asks for."""
    if cfg.runtime.print_config:
        print(cfg.to_yaml(), end="")
        return 0
    for notice in cfg.notices:
        logger.info("%s", notice)
    if cfg.runtime.count_parameters:
        return _count_parameters(cfg)
    prepare_data(cfg)
    return pretrain(cfg, run_time.initialize(cfg))


def pretrain(cfg: RunConfig, runtime: Runtime) -> int:
    """Build everything, resume where a checkpoint says, train, evaluate, save."""
    from fixedcode_megatron.model.gpt import run_vocabulary
    from fixedcode_megatron.training.checkpoint_load import load_checkpoint
    from fixedcode_megatron.training.folders import check_folders, check_space
    from fixedcode_megatron.training.hang import supervised
    from fixedcode_megatron.training.initial_weights import record_initial_weights
    from fixedcode_megatron.training.loop import evaluate_split, train
    from fixedcode_megatron.training.metrics import MetricsLogger
    from fixedcode_megatron.training.start import checkpoint_to_load
    from fixedcode_megatron.training.trainer import build_trainer

    check_folders(cfg)
    source = checkpoint_to_load(cfg)
    tokenizer = load_tokenizer(cfg)
    vocabulary = run_vocabulary(cfg, vocab_size(cfg, tokenizer))
    trainer = build_trainer(cfg, runtime, vocabulary)
    fingerprint = tokenizer.fingerprint
    if source is not None:
        load_checkpoint(
            trainer,
            source.path,
            weights_only=source.weights_only,
            tokenizer_fingerprint=fingerprint,
        )
        how = "starting with the weights of" if source.weights_only else "continuing from"
        logger.info("%s %s, iteration %d", how, source.path, trainer.state.iteration)
    if warning := check_space(trainer):
        logger.warning("%s", warning)
    feeds = build_feeds(cfg, tokenizer, vocabulary.size)
    metrics = MetricsLogger(trainer, run_dir(cfg))
    _write_config(cfg, trainer.is_logging_rank)
    if trainer.state.iteration == 0 and not cfg.training.skip_train:
        record_initial_weights(trainer, run_dir(cfg))
    try:
        with supervised(trainer):
            if cfg.training.skip_train:
                evaluate_split(trainer, feeds.valid, metrics, "validation")
                evaluate_split(trainer, feeds.test, metrics, "test")
                return 0
            signal_number = train(trainer, feeds, metrics, tokenizer_fingerprint=fingerprint)
    finally:
        metrics.close()
    return 128 + signal_number if signal_number else 0


def run_dir(cfg: RunConfig) -> Path:
    """Folder of the run's configuration and metrics."""
    return Path(cfg.logging.run_dir or cfg.checkpoint.save or "runs/pretrain")


def load_tokenizer(cfg: RunConfig) -> Tokenizer:
    """The tokenizer that the flags name; without one, ids 0..`--vocab-size` - 1 without meaning."""
    from fixedcode_megatron.data.run_tokenizer import run_tokenizer

    return run_tokenizer(cfg.to_dict())


def vocab_size(cfg: RunConfig, tokenizer: Tokenizer) -> int:
    """V of the run: `--vocab-size`, else the tokenizer's.

    Raises
    ------
    UserError
        If the tokenizer has ids beyond `--vocab-size`.
    """
    wanted, found = cfg.model.vocab_size, tokenizer.vocab_size
    if wanted is not None and found > wanted:
        raise UserError(
            f"--vocab-size {wanted} is smaller than the tokenizer's {found} ids; use --vocab-size "
            f"{found} or leave it out"
        )
    return wanted or found


def prepare_data(cfg: RunConfig) -> None:
    """Make the data of `--prepare-data` where it is missing (all ranks may call it at once)."""
    if cfg.data.prepare_data != "python-library":
        return
    from fixedcode_megatron.data.recipes import prepare_python_library

    if not cfg.data.data_path or len(cfg.data.data_path) != 1:
        raise UserError("--prepare-data python-library needs one --data-path prefix to write to")
    prepare_python_library(
        Path(cfg.data.data_path[0]).parent, vocab_size=cfg.model.vocab_size or 4096
    )


def build_feeds(cfg: RunConfig, tokenizer: Tokenizer, size: int) -> Feeds:
    """The batches of each split, for a vocabulary of `size` ids."""
    if cfg.data.sft:
        return build_sft_feeds(cfg, tokenizer)
    from fixedcode_megatron.data.datasets import build_datasets
    from fixedcode_megatron.training.data_feed import DataFeed
    from fixedcode_megatron.training.loop import Feeds
    from fixedcode_megatron.training.schedule import wanted_samples

    datasets = build_datasets(
        cfg.data,
        tokenizer,
        seq_length=cfg.model.seq_length,
        seed=cfg.training.seed,
        samples=wanted_samples(cfg),
        vocab_size=size,
    )
    if datasets[0] is None and not cfg.training.skip_train:
        raise UserError(
            f"--split {cfg.data.split} leaves training no documents: give it a share, as 98,2,0 "
            "does, or use --skip-train to evaluate only"
        )
    train, valid, test = (
        None if dataset is None else DataFeed(dataset, cfg) for dataset in datasets
    )
    return Feeds(train=train, valid=valid, test=test)


def build_sft_feeds(cfg: RunConfig, tokenizer: Tokenizer) -> Feeds:
    """The batches of each split of `--sft`; an evaluation reads no sample twice."""
    from fixedcode_megatron.data.sft import build_sft_datasets
    from fixedcode_megatron.training.data_feed import DataFeed
    from fixedcode_megatron.training.loop import Feeds
    from fixedcode_megatron.training.schedule import wanted_samples

    train_samples, _, held_out = wanted_samples(cfg)
    batch_size = cfg.training.global_batch_size
    assert batch_size is not None
    train, *others = build_sft_datasets(
        cfg.data,
        tokenizer,
        seq_length=cfg.model.seq_length,
        seed=cfg.training.seed,
        train_samples=train_samples,
        held_out_samples=held_out,
        batch_size=batch_size,
    )
    if train is None and not cfg.training.skip_train:
        raise UserError(
            "--sft: there is no conversation to train on; give --train-data-path, or --skip-train "
            "to evaluate only"
        )
    valid, test = (
        None if dataset is None else DataFeed(dataset, cfg, iterations=len(dataset) // batch_size)
        for dataset in others
    )
    return Feeds(train=None if train is None else DataFeed(train, cfg), valid=valid, test=test)


def _write_config(cfg: RunConfig, is_logging_rank: bool) -> None:
    from fixedcode_megatron.training.checkpoint_files import write_atomically

    if is_logging_rank:
        write_atomically(run_dir(cfg) / "config.yaml", cfg.to_yaml())


def _count_parameters(cfg: RunConfig) -> int:
    from fixedcode_megatron.config.derive import on_one_rank
    from fixedcode_megatron.model.count import count_parameters
    from fixedcode_megatron.model.gpt import Vocabulary

    on_one_rank(cfg)
    run_time.initialize_single(cfg)
    size = cfg.model.vocab_size or load_tokenizer(cfg).vocab_size
    divisor = cfg.model.make_vocab_size_divisible_by
    print(count_parameters(cfg, Vocabulary.padded(size, divisor, 1)))
    return 0


def _configure_logging() -> None:
    """Messages of rank 0, warnings of every rank, and the run's own log lines; all on stdout."""
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(
        format="%(message)s",
        level=logging.INFO if rank == 0 else logging.WARNING,
        stream=sys.stdout,
    )
    logging.getLogger("fixedcode_megatron.log").setLevel(logging.INFO)
    logging.getLogger("megatron").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"megatron\.core")


def _report_training(error: TrainingError) -> int:
    """Log why a run cannot go on: what concerns one rank there, what concerns all once."""
    if os.environ.get("RANK", "0") == "0" or isinstance(error.__cause__, RuntimeError):
        logger.error("error: %s", error)
    return 1


def _report(error: UserError) -> int:
    """Print a mistake of the user's, once where all ranks make it; returns the exit status."""
    from fixedcode_megatron.config import report

    if os.environ.get("RANK", "0") != "0":
        # A launcher ends this rank when rank 0 fails, and rank 0 has most likely said the same.
        time.sleep(3)
    return report(error)


if __name__ == "__main__":
    sys.exit(main())
