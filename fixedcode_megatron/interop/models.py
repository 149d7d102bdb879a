"""Models to generate with, from a checkpoint of ours or from a Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fixedcode_megatron.data.tokenizers import NullTokenizer, Tokenizer, build_tokenizer
from fixedcode_megatron.errors import UserError


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model of transformers with what it needs to be used.

    Attributes
    ----------
    eod
        Id that ends a text, if there is one.
    tokenizer
        Texts to ids and back; numbers ("5 17 3") where the model came without one.
    """

    model: Any
    vocab_size: int
    max_positions: int
    eod: int | None
    tokenizer: Tokenizer


def load_model(
    path: Path,
    *,
    step: int | None = None,
    tokenizer_model: str | None = None,
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a folder of checkpoints, one checkpoint, or a Hugging Face folder.

    Raises
    ------
    UserError
        If there is none, or its model is one that only Megatron runs.
    """
    if (path / "config.json").is_file():
        return _from_folder(path, tokenizer_model, device, trust_remote_code)
    return _from_checkpoint(path, step, tokenizer_model, device)


def _from_folder(
    folder: Path, tokenizer_model: str | None, device: str, trust_remote_code: bool
) -> LoadedModel:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as progress

    from fixedcode_megatron.interop.modeling_fixedcode import FixedCodeConfig, FixedCodeForCausalLM

    progress.disable_progress_bar()
    options: dict[str, Any] = {"local_files_only": True, "dtype": "auto"}
    if '"fixedcode"' in (folder / "config.json").read_text("utf-8"):
        config = FixedCodeConfig.from_pretrained(folder)  # this program's own, not the folder's
        model = FixedCodeForCausalLM.from_pretrained(folder, config=config, **options)
    else:
        options["trust_remote_code"] = trust_remote_code
        try:
            model = AutoModelForCausalLM.from_pretrained(folder, **options)
        except (OSError, ValueError) as error:
            raise UserError(f"--load {folder}: {error}") from error
    size = model.config.vocab_size
    found = (folder / "tokenizer.json").is_file()
    tokenizer = _tokenizer(None, tokenizer_model or (str(folder) if found else None), size)
    eod = model.config.eos_token_id
    eod = tokenizer.eod_id if eod is None and not isinstance(tokenizer, NullTokenizer) else eod
    positions = model.config.max_position_embeddings
    return LoadedModel(model.to(device).eval(), size, positions, eod, tokenizer)


def _from_checkpoint(
    root: Path, step: int | None, tokenizer_model: str | None, device: str
) -> LoadedModel:
    from transformers import AutoConfig, AutoModelForCausalLM

    from fixedcode_megatron.interop.forms import form_of
    from fixedcode_megatron.interop.modeling_fixedcode import FixedCodeConfig, FixedCodeForCausalLM
    from fixedcode_megatron.interop.source import exported_tensors, open_checkpoint

    source = open_checkpoint(root, step)
    a, saved = source.architecture, source.common["config"]
    form = form_of("plain" if a.tied_head else "table-free", a)
    settings = {k: v for k, v in form.config.items() if k not in ("architectures", "auto_map")}
    if a.tied_head:
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**settings), dtype=source.dtype
        )
    else:
        settings.pop("model_type")
        model = FixedCodeForCausalLM(FixedCodeConfig(**settings)).to(source.dtype)
    places = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in exported_tensors(source, form):
            places.pop(name).copy_(tensor)
    assert not places, f"weights without a value: {sorted(places)}"
    tokenizer = _tokenizer(saved, tokenizer_model, a.vocab_size)
    eod = None if isinstance(tokenizer, NullTokenizer) else tokenizer.eod_id
    return LoadedModel(model.to(device).eval(), a.vocab_size, a.max_positions, eod, tokenizer)


def _tokenizer(saved: dict[str, Any] | None, model: str | None, vocab_size: int) -> Tokenizer:
    """The tokenizer in `model`, or that of the configuration; numbers where there is none."""
    if model is not None:
        kind = saved["tokenizer_type"] if saved else None
        return build_tokenizer(kind or "HuggingFaceTokenizer", model)
    kind = None if saved is None else saved["tokenizer_type"]
    if saved is None or kind == "NullTokenizer" or (kind is None and not saved["tokenizer_model"]):
        return NullTokenizer(vocab_size - 1)
    return build_tokenizer(
        kind or "HuggingFaceTokenizer",
        saved["tokenizer_model"],
        saved["vocab_file"],
        saved["merge_file"],
        tiktoken_pattern=saved["tiktoken_pattern"],
        tiktoken_special_tokens=saved["tiktoken_special_tokens"],
    )
