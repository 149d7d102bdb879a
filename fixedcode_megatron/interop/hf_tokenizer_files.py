"""The tokenizer files of an export."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fixedcode_megatron.data.hf_tokenizers import HuggingFaceTokenizer
from fixedcode_megatron.data.run_tokenizer import run_tokenizer
from fixedcode_megatron.data.tokenizers import NullTokenizer
from fixedcode_megatron.interop.hf_folder import read_json, write_json

_BESIDE = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)

logger = logging.getLogger(__name__)


def write_tokenizer(
    folder: Path, saved: Mapping[str, Any], fingerprint: str | None, model: str | None = None
) -> int | None:
    """Copy the run's tokenizer into an export; returns the id that ends a text, if it has one.

    Parameters
    ----------
    saved
        The checkpoint's configuration.
    fingerprint
        That of the tokenizer the model was trained with.
    model
        Where the tokenizer lies now, if not where the configuration says.

    Raises
    ------
    UserError
        If it is not there, or not the one that the model was trained with.
    """
    tokenizer = run_tokenizer(saved, model, fingerprint)
    if isinstance(tokenizer, NullTokenizer):
        logger.warning("the run had no tokenizer: the export has none either")
        return None
    if isinstance(tokenizer, HuggingFaceTokenizer):
        _write(folder, tokenizer)
    else:
        logger.warning(
            "%s has no form in transformers: the export has no tokenizer files",
            saved["tokenizer_type"],
        )
    return tokenizer.eod_id


def _write(folder: Path, tokenizer: HuggingFaceTokenizer) -> None:
    (folder / "tokenizer.json").write_bytes(tokenizer.source)
    home = tokenizer.path.parent
    for name in _BESIDE:
        if (home / name).is_file():
            shutil.copyfile(home / name, folder / name)
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    config.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    if tokenizer.eod_id is not None and not config.get("eos_token"):
        config["eos_token"] = tokenizer.decode([tokenizer.eod_id])
    write_json(path, config)
