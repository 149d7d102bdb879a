"""From a checkpoint of ours to a Hugging Face folder."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from fixedcode_megatron.config.tree import OPTIONS
from fixedcode_megatron.interop import modeling_fixedcode
from fixedcode_megatron.interop.forms import form_of
from fixedcode_megatron.interop.hf_folder import RECORD, atomically, write_json, write_tensors
from fixedcode_megatron.interop.hf_tokenizer_files import write_tokenizer
from fixedcode_megatron.interop.model_card import model_card
from fixedcode_megatron.interop.source import Source, exported_tensors, open_checkpoint

logger = logging.getLogger(__name__)


def export(
    root: Path,
    target: Path,
    kind: str,
    *,
    step: int | None = None,
    tokenizer_model: str | None = None,
    max_shard_bytes: int = 10**9,
) -> None:
    """Write the checkpoint in `root` as the new folder `target`.

    Parameters
    ----------
    kind
        `plain` or `table-free`.
    step
        Iteration, if not the newest.
    tokenizer_model
        Where the tokenizer lies, if not where it lay in training.

    Raises
    ------
    UserError
        If there is no such checkpoint, no such form of its model, or `target` exists.
    """
    source = open_checkpoint(root, step)
    form = form_of(kind, source.architecture)
    common = source.common
    with atomically(target) as folder:
        eos = write_tokenizer(
            folder, common["config"], common["tokenizer_fingerprint"], tokenizer_model
        )
        elements = write_tensors(folder, exported_tensors(source, form), max_shard_bytes)
        ends = {"bos_token_id": None, "eos_token_id": eos}
        dtype = str(source.dtype).removeprefix("torch.")
        write_json(folder / "config.json", form.config | ends | {"torch_dtype": dtype})
        write_json(folder / "generation_config.json", ends)
        write_json(folder / RECORD, _record(source, kind))
        if kind == "table-free":
            shutil.copyfile(str(modeling_fixedcode.__file__), folder / "modeling_fixedcode.py")
        card = model_card(source, form, elements)
        (folder / "README.md").write_text(card, encoding="utf-8")
    logger.info("wrote %s: %s, %d weights in %s", target, kind, elements, dtype)


def _record(source: Source, kind: str) -> dict[str, Any]:
    common, shape = source.common, {"input", "model", "transformer"}
    saved = {
        name: value
        for name, value in common["config"].items()
        if name in OPTIONS and shape & set(OPTIONS[name].sections) and name != "code_matrix"
    }
    # Which GELU it is no longer depends on the machine.
    saved["bias_activation_fusion"] = source.architecture.activation == "gelu_pytorch_tanh"
    kept = ("input_interface", "vocab_size", "token_code", "tokenizer_fingerprint", "iteration")
    return {"form": kind, "config": saved} | {name: common[name] for name in kept}
