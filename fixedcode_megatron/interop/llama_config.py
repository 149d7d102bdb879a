"""A LlamaForCausalLM's config.json in our settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fixedcode_megatron.errors import UserError

_NEEDED = (
    "vocab_size",
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "max_position_embeddings",
    "rms_norm_eps",
)


def settings_of_llama(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a foreign model, in the shape of an export's own record.

    Raises
    ------
    UserError
        If it is no LlamaForCausalLM, one with something that our models do not have, or a setting
        is missing.
    """
    names = config.get("architectures")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000))
    kind = rope.get("rope_type", rope.get("type", "default"))
    bias = bool(config.get("attention_bias", False))
    needed = [
        ("architectures", names, names == ["LlamaForCausalLM"], ["LlamaForCausalLM"]),
        ("hidden_act", config.get("hidden_act"), config.get("hidden_act") == "silu", "silu"),
        ("rope_type", kind, kind == "default", "default"),
        ("rope_theta", theta, float(theta).is_integer(), "a whole number"),
        (
            "mlp_bias",
            config.get("mlp_bias", False),
            bool(config.get("mlp_bias", False)) == bias,
            bias,
        ),
    ]
    problems = [f"{n} {found}, only {right} works" for n, found, fine, right in needed if not fine]
    if problems:
        raise UserError(f"config.json: {'; '.join(problems)}")
    if absent := [name for name in _NEEDED if not _is_positive(config.get(name))]:
        raise UserError(f"config.json: give a positive number for {', '.join(absent)}")
    heads = config["num_attention_heads"]
    return {
        "form": "plain",
        "input_interface": "learned",
        "vocab_size": config["vocab_size"],
        "token_code": None,
        "tokenizer_fingerprint": None,
        "config": {
            "input_interface": "learned",
            "vocab_size": config["vocab_size"],
            "num_layers": config["num_hidden_layers"],
            "hidden_size": config["hidden_size"],
            "ffn_hidden_size": config["intermediate_size"],
            "num_attention_heads": heads,
            "num_query_groups": config.get("num_key_value_heads") or heads,
            "kv_channels": config.get("head_dim") or config["hidden_size"] // heads,
            "seq_length": config["max_position_embeddings"],
            "max_position_embeddings": config["max_position_embeddings"],
            "swiglu": True,
            "normalization": "RMSNorm",
            "layernorm_epsilon": config["rms_norm_eps"],
            "add_bias_linear": bias,
            "rotary_base": int(theta),
            "untie_embeddings_and_output_weights": not config.get("tie_word_embeddings", False),
        },
    }


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and value > 0
