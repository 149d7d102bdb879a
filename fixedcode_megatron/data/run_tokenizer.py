"""The tokenizer of a run, from its settings: in training, and wherever its model goes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fixedcode_megatron.data.tokenizers import Tokenizer, build_tokenizer
from fixedcode_megatron.errors import UserError

logger = logging.getLogger(__name__)


def run_tokenizer(
    settings: Mapping[str, Any], model: str | None = None, fingerprint: str | None = None
) -> Tokenizer:
    """The tokenizer that a run's settings name; without one, ids 0..V - 1 without meaning.

    Parameters
    ----------
    settings
        The run's configuration: `tokenizer_type`, `tokenizer_model`, `vocab_size` and the like.
        What is not there counts as not given.
    model
        Where the tokenizer lies now, if not where the settings say: what `--tokenizer-model` takes,
        or for GPT2BPETokenizer the folder of its two files. A run on ids without meaning is given
        a HuggingFaceTokenizer by it.
    fingerprint
        That of the tokenizer which the run's model was trained with, if it is to be compared.

    Raises
    ------
    UserError
        If a setting is missing, a file cannot be read, or the tokenizer is not the model's.
    """
    kind, size = settings.get("tokenizer_type"), settings.get("vocab_size")
    if kind == "NullTokenizer" or (kind is None and settings.get("tokenizer_model") is None):
        return _of_numbers(size, model)
    files = [settings.get("vocab_file"), settings.get("merge_file")]
    if model is not None and kind == "GPT2BPETokenizer":
        files = [file and str(Path(model, Path(file).name)) for file in files]
    where = model or settings.get("tokenizer_model")
    tokenizer = build_tokenizer(
        kind or "HuggingFaceTokenizer",
        where,
        *files,
        tiktoken_pattern=settings.get("tiktoken_pattern"),
        tiktoken_special_tokens=settings.get("tiktoken_special_tokens"),
    )
    check_fingerprint(tokenizer, where, fingerprint)
    return tokenizer


def check_fingerprint(tokenizer: Tokenizer, where: str | None, wanted: str | None) -> None:
    """Refuse another tokenizer than the one with the fingerprint `wanted`; None is any."""
    if wanted not in (None, tokenizer.fingerprint):
        raise UserError(
            f"--tokenizer-model {where}: not the tokenizer that the model was trained with "
            f"(fingerprint {tokenizer.fingerprint}, wanted {wanted})"
        )


def _of_numbers(size: int | None, model: str | None) -> Tokenizer:
    """The ids 0..`size` - 1, or the tokenizer in `model` that somebody says they came from."""
    if model is None:
        if size is None:
            raise UserError("give --tokenizer-model, or --vocab-size (the number of token ids)")
        return build_tokenizer("NullTokenizer", vocab_size=size - 1)
    tokenizer = build_tokenizer("HuggingFaceTokenizer", model)
    if size is not None and tokenizer.vocab_size > size:
        raise UserError(
            f"--tokenizer-model {model}: it has {tokenizer.vocab_size} ids, the model {size}"
        )
    logger.warning("the run was trained on ids: nothing in it says that %s made them", model)
    return tokenizer
