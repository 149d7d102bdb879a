"""Whether a checkpoint means what this run's flags say; each refusal names what differs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.training.warm_start import INTERFACE_FLAG

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig
    from fixedcode_megatron.training.trainer import Trainer

logger = logging.getLogger(__name__)

# What the tensors' shapes follow from.
_SHAPE = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "swiglu",
    "normalization",
    "add_bias_linear",
    "add_qkv_bias",
    "qk_layernorm",
    "untie_embeddings_and_output_weights",
)
# What the function of the same tensors depends on; a new run may want to change these.
_MEANING = (
    "position_embedding_type",
    "rotary_base",
    "rotary_percent",
    "rotary_interleaved",
    "layernorm_epsilon",
    "layernorm_zero_centered_gamma",
    "squared_relu",
    "softmax_scale",
)


def check_inputs(
    trainer: Trainer,
    common: Mapping[str, Any],
    path: Path,
    tokenizer_fingerprint: str | None,
    weights_only: bool,
) -> bool:
    """Refuse a checkpoint whose inputs mean something else than this run's.

    Parameters
    ----------
    common
        The checkpoint's common state.
    weights_only
        A new run starts with its weights: the input interface may then change, if that is asked
        for; the tokenizer may not.

    Returns
    -------
    bool
        Whether the input interface is the same, table or code.
    """
    if "token_code" not in common:
        raise UserError(
            f"{path} was not written by fixedcode-megatron: it names no token code. A new run can "
            "start with its weights: --finetune, or --pretrained-checkpoint in place of --load"
        )
    _check_vocabulary(trainer.vocabulary.size, common, path)
    saved = common["tokenizer_fingerprint"]
    if tokenizer_fingerprint and saved and tokenizer_fingerprint != saved:
        raise UserError(
            f"{path} was trained with another tokenizer (fingerprint {saved}, "
            f"this run's is {tokenizer_fingerprint}); give the checkpoint's --tokenizer-model"
        )
    difference = _difference_of_inputs(trainer, common)
    if difference is None:
        return True
    if weights_only and trainer.cfg.checkpoint.allow_input_interface_change:
        logger.info("%s %s: all but its input is loaded", path, difference)
        return False
    raise UserError(
        f"{path} {difference}\nUse the checkpoint's input, or another --load. To start a new run "
        f"with all of its weights but the input table, give {INTERFACE_FLAG} with --finetune or "
        "--pretrained-checkpoint"
    )


def _check_vocabulary(size: int, common: Mapping[str, Any], path: Path) -> None:
    """Rows of head and table may be padded differently, but must be those of the same ids."""
    saved, rows = common.get("vocab_size"), common.get("padded_vocab_size")
    if (saved and saved != size) or (rows and rows < size):
        raise UserError(
            f"{path} was trained with a vocabulary of {saved or rows} ids, this run has {size}; "
            "give the checkpoint's --tokenizer-model or --vocab-size"
        )


def _difference_of_inputs(trainer: Trainer, common: Mapping[str, Any]) -> str | None:
    wanted = trainer.cfg.input.input_interface
    if common["input_interface"] != wanted:
        return (
            f"was trained with --input-interface {common['input_interface']}, this run asks for "
            f"{wanted}"
        )
    code = None if trainer.code is None else trainer.code.to_json()
    if common["token_code"] != code:
        return (
            f"was trained with another token code (--code-* flags, vocabulary).\n"
            f"  checkpoint: {common['token_code']}\n  this run:   {code}"
        )
    return None


def check_model(cfg: RunConfig, saved: Mapping[str, Any], path: Path, weights_only: bool) -> None:
    """Refuse a checkpoint of another model, naming the flags that differ."""
    wanted = cfg.to_dict()

    def differences(names: tuple[str, ...]) -> str:
        return "; ".join(
            f"--{name.replace('_', '-')}: {saved[name]} in the checkpoint, {wanted[name]} here"
            for name in names
            if name in saved and saved[name] != wanted[name]
        )

    if found := differences(_SHAPE if weights_only else _SHAPE + _MEANING):
        raise UserError(f"{path} does not fit the model that the flags describe: {found}")
    if found := differences(_MEANING):
        logger.info("%s is taken to another function of its weights: %s", path, found)


def check_optimizer_kind(cfg: RunConfig, saved: Mapping[str, Any], path: Path) -> None:
    """Refuse to load one kind of optimizer's state into the other: megatron-core cannot."""
    optimizer = saved.get("optimizer", cfg.optimizer.optimizer)
    if optimizer != cfg.optimizer.optimizer:
        raise UserError(
            f"{path} was saved with --optimizer {optimizer}, here is {cfg.optimizer.optimizer}: "
            "give the same, or start the optimizer anew with --no-load-optim"
        )
    distributed = saved["use_distributed_optimizer"]
    if distributed != cfg.ddp.use_distributed_optimizer:
        used, flag = ("with", "add") if distributed else ("without", "leave out")
        raise UserError(
            f"{path} was saved {used} --use-distributed-optimizer: {flag} the flag (it works with "
            "any number of ranks), or start the optimizer anew with --no-load-optim"
        )
    split = saved.get("expert_model_parallel_size", 1)
    if (split > 1) != (cfg.transformer.expert_model_parallel_size > 1):
        raise UserError(
            f"{path} was saved with --expert-model-parallel-size {split}: experts that are split "
            "over ranks have an optimizer of their own, so that its state goes on where they are "
            "split (in any way) or nowhere; give such a size, or --no-load-optim"
        )
