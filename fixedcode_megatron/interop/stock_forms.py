"""The plain forms: stock architectures whose input table holds the codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.interop.architecture import Architecture
from fixedcode_megatron.interop.pieces import (
    FC1,
    FC2,
    PROJ,
    QKV,
    Form,
    Piece,
    layer_pieces,
    model_pieces,
    sizes,
)


def stock_form(a: Architecture) -> Form:
    """The form of the stock architecture that fits.

    Raises
    ------
    UserError
        If there is none.
    """
    return _STOCK[stock_architecture(a)](a)


def stock_architecture(a: Architecture) -> str:
    """The class of transformers that computes exactly this model's function.

    Raises
    ------
    UserError
        If there is none.
    """
    refuse = {
        "zero-centred norm weights": a.zero_centered_norm,
        "norms of queries and keys": a.qk_norm,
        "squared ReLU": a.activation == "relu2",
        "no positions": a.rotary_fraction == 0,
    }
    square = a.head_size * a.num_heads == a.hidden_size
    gelu = a.activation.startswith("gelu")
    if not any(refuse.values()):
        if a.normalization == "RMSNorm" and a.gated:
            if a.rotary_fraction == 1:
                return "LlamaForCausalLM"
            if square and not a.qkv_bias:
                return "Phi3ForCausalLM"
            refuse["partial rotary positions with biases or heads of another width"] = True
        elif a.normalization == "LayerNorm" and gelu and square:
            if a.num_groups == a.num_heads:
                return "GPTNeoXForCausalLM"
            if a.rotary_fraction == 1:
                return "Starcoder2ForCausalLM"
            refuse["partial rotary positions with query groups, LayerNorm and GELU"] = True
        else:
            heads = "" if square else ", heads of another width"
            refuse[f"{a.normalization} with {a.activation}{heads}"] = True
    found = ", ".join(name for name, present in refuse.items() if present)
    raise UserError(
        f"--form plain: no stock architecture has {found}; use --form table-free, which has"
    )


def _rope(a: Architecture) -> dict[str, Any]:
    """Rotary settings where newer and older releases of transformers look for them."""
    both = {"rope_theta": a.rotary_base, "partial_rotary_factor": a.rotary_fraction}
    return both | {"rope_parameters": {"rope_type": "default", **both}}


_LLAMA_NAMES = {
    "norm1": ("input_layernorm",),
    "norm2": ("post_attention_layernorm",),
    QKV: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    PROJ: ("self_attn.o_proj",),
    FC1: ("mlp.gate_proj", "mlp.up_proj"),
    FC2: ("mlp.down_proj",),
}


def _llama(a: Architecture) -> Form:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "head_dim": a.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": a.norm_epsilon,
        "attention_bias": a.qkv_bias,
        "mlp_bias": a.linear_bias,
    }
    zeros = {"self_attn.o_proj.bias": a.hidden_size} if a.qkv_bias and not a.linear_bias else {}
    return _stock_form(a, config, _LLAMA_NAMES, {QKV: "qkv", FC1: "halves"}, zeros)


def _phi3(a: Architecture) -> Form:
    config = {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "original_max_position_embeddings": a.max_positions,
        "hidden_act": "silu",
        "rms_norm_eps": a.norm_epsilon,
        "pad_token_id": None,
    }
    names = _LLAMA_NAMES | {QKV: ("self_attn.qkv_proj",), FC1: ("mlp.gate_up_proj",)}
    return _stock_form(a, config, names, {QKV: "qkv_rows"}, {})


def _gpt_neox(a: Architecture) -> Form:
    config = {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "hidden_act": a.activation,
        "layer_norm_eps": a.norm_epsilon,
        "use_parallel_residual": False,
        "attention_bias": a.qkv_bias,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "rotary_pct": a.rotary_fraction,
        "rotary_emb_base": a.rotary_base,
    }
    names = _LLAMA_NAMES | {
        QKV: ("attention.query_key_value",),  # head by head, as Megatron's
        PROJ: ("attention.dense",),
        FC1: ("mlp.dense_h_to_4h",),
        FC2: ("mlp.dense_4h_to_h",),
    }
    zeros = {}
    if not a.linear_bias:
        zeros = {"mlp.dense_h_to_4h.bias": a.ffn_hidden_size}
        zeros |= {"mlp.dense_4h_to_h.bias": a.hidden_size}
        zeros |= {"attention.dense.bias": a.hidden_size} if a.qkv_bias else {}
    outer = {"table": "gpt_neox.embed_in", "norm": "gpt_neox.final_layer_norm", "head": "embed_out"}
    return _stock_form(a, config, names, {}, zeros, layers="gpt_neox.layers", **outer)


def _starcoder2(a: Architecture) -> Form:
    config = {
        "architectures": ["Starcoder2ForCausalLM"],
        "model_type": "starcoder2",
        "hidden_act": a.activation,
        "norm_epsilon": a.norm_epsilon,
        "use_bias": a.qkv_bias,
        "attention_dropout": 0.0,
        "residual_dropout": 0.0,
        "embedding_dropout": 0.0,
    }
    names = _LLAMA_NAMES | {FC1: ("mlp.c_fc",), FC2: ("mlp.c_proj",)}
    zeros = {}
    if a.qkv_bias and not a.linear_bias:
        zeros = {"self_attn.o_proj.bias": a.hidden_size, "mlp.c_fc.bias": a.ffn_hidden_size}
        zeros |= {"mlp.c_proj.bias": a.hidden_size}
    return _stock_form(a, config, names, {QKV: "qkv"}, zeros)


def _stock_form(
    a: Architecture,
    config: dict[str, Any],
    names: Mapping[str, tuple[str, ...]],
    cuts: Mapping[str, str],
    zeros: Mapping[str, int],
    *,
    layers: str = "model.layers",
    table: str = "model.embed_tokens",
    norm: str = "model.norm",
    head: str = "lm_head",
) -> Form:
    """A form by what its class calls its parts; `zeros` are biases of every layer."""

    def layer(i: int) -> Iterator[Piece]:
        return layer_pieces(a, f"{layers}.{i}.", names, cuts)

    each = {f"{layers}.{i}.{n}": size for i in range(a.num_layers) for n, size in zeros.items()}
    pieces = model_pieces(a, layer, norm, f"{head}.weight")
    return Form(sizes(a) | config | _rope(a), pieces, f"{table}.weight", each)


_STOCK = {
    "LlamaForCausalLM": _llama,
    "Phi3ForCausalLM": _phi3,
    "GPTNeoXForCausalLM": _gpt_neox,
    "Starcoder2ForCausalLM": _starcoder2,
}
