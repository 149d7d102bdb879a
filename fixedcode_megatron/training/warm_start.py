"""New runs that start with the weights of other ones: Megatron-LM's, or of another input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fixedcode_megatron.errors import UserError

INTERFACE_FLAG = "--allow-input-interface-change"
_INPUT = "embedding."  # keys of what turns ids into vectors; a fixed code has none

# Megatron-LM's names for settings that megatron-core calls otherwise.
_RENAMED = {
    "norm_epsilon": "layernorm_epsilon",
    "apply_layernorm_1p": "layernorm_zero_centered_gamma",
}


def is_input(key: str) -> bool:
    """Whether a checkpoint's key, or a parameter's name, belongs to the input interface."""
    return key.startswith(_INPUT)


def without_input(state: dict[str, Any]) -> dict[str, Any]:
    """A model chunk's sharded state but for the table, which stays as it was drawn."""
    return {name: value for name, value in state.items() if not is_input(name)}


def completed(common: dict[str, Any], path: Path) -> dict[str, Any]:
    """The common state of our checkpoints, or of one that Megatron-LM wrote.

    Raises
    ------
    UserError
        If it is neither.
    """
    if "token_code" in common:
        return common
    if "args" not in common:
        raise UserError(
            f"{path} was written neither by fixedcode-megatron nor by Megatron-LM: it holds "
            f"{', '.join(sorted(common)) or 'nothing'}"
        )
    args = vars(common["args"])
    return {
        "input_interface": "learned",
        "token_code": None,
        "tokenizer_fingerprint": None,
        "vocab_size": args.get("vocab_size"),
        "padded_vocab_size": args.get("padded_vocab_size"),
        "config": _settings(args),
    }


def _settings(args: dict[str, Any]) -> dict[str, Any]:
    """Megatron-LM's arguments under megatron-core's names."""
    settings = {_RENAMED.get(name, name): value for name, value in args.items()}
    if not args.get("group_query_attention", True):
        settings["num_query_groups"] = args["num_attention_heads"]  # theirs then says 1
    return settings
