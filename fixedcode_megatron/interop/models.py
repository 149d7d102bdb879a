"""Models to generate with, from a checkpoint of ours or from a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fixedcode_megatron.data.run_tokenizer import check_fingerprint, run_tokenizer
from fixedcode_megatron.data.tokenizers import NullTokenizer, Tokenizer
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.interop.hf_folder import RECORD, read_json
from fixedcode_megatron.interop.tensor_parallel import Share, connect


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model of transformers with what it needs to be used.

    Attributes
    ----------
    max_positions
        Longest context; None where the model does not say.
    eod
        Id that ends a text, or several of which each does, if there are any.
    tokenizer
        Texts to ids and back; numbers ("5 17 3") where the model came without one.
    """

    model: Any
    vocab_size: int
    max_positions: int | None
    eod: int | Collection[int] | None
    tokenizer: Tokenizer


def load_model(
    path: Path,
    *,
    step: int | None = None,
    tokenizer_model: str | None = None,
    device: str = "cpu",
    trust_remote_code: bool = False,
    share: Share | None = None,
) -> LoadedModel:
    """Load a folder of checkpoints, one checkpoint, or a Hugging Face folder.

    Parameters
    ----------
    share
        What this rank has of the model, where the ranks of the default process group share it:
        every rank then calls the model with the same arguments.

    Raises
    ------
    UserError
        If there is none, it is damaged, or its model is one that only Megatron runs.
    """
    if is_folder(path):
        if share is not None:
            raise UserError(
                f"--load {path}: a Hugging Face folder takes one process, without torchrun"
            )
        if step is not None:
            raise UserError(
                f"--ckpt-step {step}: --load {path} is a Hugging Face folder, without iterations"
            )
        return _from_folder(path, tokenizer_model, device, trust_remote_code)
    if trust_remote_code:
        raise UserError(f"--trust-remote-code: --load {path} holds no code, only weights")
    return _from_checkpoint(path, step, tokenizer_model, device, share)


def is_folder(path: Path) -> bool:
    """Whether it is a Hugging Face folder."""
    return (path / "config.json").is_file()


def _from_folder(
    folder: Path, tokenizer_model: str | None, device: str, trust_remote_code: bool
) -> LoadedModel:
    model = _model_of_folder(folder, trust_remote_code)
    size, found = model.config.vocab_size, (folder / "tokenizer.json").is_file()
    settings = {"tokenizer_model": str(folder) if found else None, "vocab_size": size}
    tokenizer = run_tokenizer(settings, tokenizer_model)
    if tokenizer_model is not None and (folder / RECORD).is_file():
        wanted = read_json(folder / RECORD).get("tokenizer_fingerprint")
        check_fingerprint(tokenizer, tokenizer_model, wanted)
    eod = getattr(model.config, "eos_token_id", None)
    eod = _eod(tokenizer) if eod is None else eod
    positions = getattr(model.config, "max_position_embeddings", None)
    return LoadedModel(model.to(device).eval(), size, positions, eod, tokenizer)


def _model_of_folder(folder: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as progress

    from fixedcode_megatron.interop.modeling_fixedcode import FixedCodeConfig, FixedCodeForCausalLM

    progress.disable_progress_bar()
    settings = read_json(folder / "config.json")
    options: dict[str, Any] = {"local_files_only": True, "dtype": "auto"}
    options["output_loading_info"] = True
    try:
        if settings.get("model_type") == FixedCodeConfig.model_type:
            config = FixedCodeConfig.from_pretrained(folder)  # this program's, not the folder's
            model, found = FixedCodeForCausalLM.from_pretrained(folder, config=config, **options)
        else:
            options["trust_remote_code"] = trust_remote_code
            model, found = AutoModelForCausalLM.from_pretrained(folder, **options)
    except Exception as error:  # whatever transformers and the folder's own code raise
        raise UserError(f"--load {folder} could not be loaded: {error}") from error
    if missing := sorted(found["missing_keys"]):
        raise UserError(f"--load {folder} lacks weights of its model: {', '.join(missing[:5])}")
    return model


def _from_checkpoint(
    root: Path, step: int | None, tokenizer_model: str | None, device: str, share: Share | None
) -> LoadedModel:
    from transformers import AutoConfig, AutoModelForCausalLM

    from fixedcode_megatron.interop.forms import form_of
    from fixedcode_megatron.interop.modeling_fixedcode import FixedCodeConfig, FixedCodeForCausalLM
    from fixedcode_megatron.interop.source import exported_tensors, open_checkpoint

    source = open_checkpoint(root, step)
    a, saved = source.architecture, source.common["config"]
    form = form_of("plain" if a.tied_head else "table-free", a)
    settings = {k: v for k, v in form.config.items() if k not in ("architectures", "auto_map")}
    share = share or Share(0, 1)
    if a.tied_head:
        if share.size > 1:
            raise UserError(f"--load {root}: its tied head takes one process, without torchrun")
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**settings), dtype=source.dtype
        )
    else:
        settings.pop("model_type")
        model = FixedCodeForCausalLM(FixedCodeConfig(**share.settings(settings))).to(source.dtype)
    places = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in exported_tensors(source, form):
            places.pop(name).copy_(share.of(name, tensor, gated=a.gated))
    if share.size > 1:
        connect(model)
    assert not places, f"weights without a value: {sorted(places)}"
    tokenizer = run_tokenizer(saved, tokenizer_model, source.common["tokenizer_fingerprint"])
    return LoadedModel(
        model.to(device).eval(), a.vocab_size, a.max_positions, _eod(tokenizer), tokenizer
    )


def _eod(tokenizer: Tokenizer) -> int | None:
    """The id that ends a text; None where ids have no meaning."""
    return None if isinstance(tokenizer, NullTokenizer) else tokenizer.eod_id
