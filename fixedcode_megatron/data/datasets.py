"""Training, validation and test datasets on megatron-core, with everything checked beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fixedcode_megatron.data.batches import BatchIterator
from fixedcode_megatron.data.plans import plan_splits
from fixedcode_megatron.data.token_check import check_token_ids
from fixedcode_megatron.errors import UserError

__all__ = ["BatchIterator", "build_datasets"]


def build_datasets(
    data: Any,
    tokenizer: Any,
    *,
    seq_length: int,
    seed: int,
    samples: Sequence[int | None],
    vocab_size: int | None = None,
) -> tuple[Any, Any, Any]:
    """Build the training, validation and test datasets; call it on every rank.

    Parameters
    ----------
    data
        An object with Megatron's names: `data_path` (with `split`) or `train_data_path`,
        `valid_data_path`, `test_data_path`; `data_cache_path`, `reset_position_ids`,
        `reset_attention_mask`, `eod_mask_loss`, `mmap_bin_files`. Missing ones take Megatron's
        defaults.
    tokenizer
        Anything with `eod_id`, `vocab_size` and `unique_identifiers` (see `Tokenizer`).
    seq_length
        Tokens per sample.
    seed
        Seed of the order of documents and samples; no global generator is used.
    samples
        Samples wanted of training, validation and test. 0 builds nothing for that split; None
        takes its documents once.
    vocab_size
        Size of the model's vocabulary: a larger id in the data is refused. Default: not checked.

    Returns
    -------
    tuple
        Three datasets of dicts (see `TokenDataset`), or None where nothing was wanted or `split`
        gives that split no share.

    Raises
    ------
    UserError
        For every mistake in the paths, a split without tokens, or ids above the vocabulary.
    """
    plans = plan_splits(data, samples, seq_length)
    needs_eod = [
        f"--{name.replace('_', '-')}"
        for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
        if getattr(data, name, False)
    ]
    if needs_eod and tokenizer.eod_id is None:
        raise UserError(f"{needs_eod[0]} needs a tokenizer with an end-of-document token")
    if vocab_size is not None:
        prefixes = {part.prefix for plan in plans if plan for part in plan.parts}
        _on_first_rank(lambda: check_token_ids(sorted(prefixes), vocab_size))
    from fixedcode_megatron.data.sample_index import SampleIndex  # imports megatron-core

    index = SampleIndex(data, tokenizer, seq_length=seq_length, seed=seed)
    _first_rank_first(lambda: [index.ensure(plan) for plan in plans if plan is not None])
    train, valid, test = (None if plan is None else index.load(plan) for plan in plans)
    return train, valid, test


def _on_first_rank(work: Callable[[], None]) -> None:
    """Run `work` on rank 0; if it fails there, raise the error on every rank."""
    _first_rank_first(work, others=False)


def _first_rank_first(work: Callable[[], object], *, others: bool = True) -> None:
    """Run `work` on rank 0, then on the other ranks; an error of rank 0 is raised everywhere."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        work()
        return
    failure: list[Exception | None] = [None]
    if dist.get_rank() == 0:
        try:
            work()
        except UserError as error:
            failure = [error]
        except Exception as error:
            failure = [RuntimeError(f"rank 0 could not build the datasets: {error!r}")]
    dist.broadcast_object_list(failure, src=0)
    if failure[0] is not None:
        raise failure[0]
    if dist.get_rank() != 0 and others:
        work()
