"""The forms that models are exported in: our own, `table-free`, and `plain` stock architectures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.interop.architecture import Architecture
from fixedcode_megatron.interop.pieces import (
    FC1,
    FC2,
    LOWDIM,
    PROJ,
    QKV,
    TABLE,
    Form,
    Piece,
    layer_pieces,
    model_pieces,
    norm_parameters,
    sizes,
)
from fixedcode_megatron.interop.stock_forms import stock_form

TABLE_FREE = "FixedCodeForCausalLM"


def form_of(kind: str, a: Architecture) -> Form:
    """The form `table-free` or `plain` of an architecture.

    Raises
    ------
    UserError
        If no stock architecture computes the same function.
    """
    if kind == "table-free":
        if a.tied_head:
            raise UserError(
                "--form table-free: the head is the input table (tied); use --form plain"
            )
        return _table_free(a)
    return stock_form(a)


def _table_free(a: Architecture) -> Form:
    code = None if a.code is None else asdict(a.code)
    config = sizes(a) | {
        "architectures": [TABLE_FREE],
        "auto_map": {
            "AutoConfig": "modeling_fixedcode.FixedCodeConfig",
            "AutoModelForCausalLM": f"modeling_fixedcode.{TABLE_FREE}",
        },
        "model_type": "fixedcode",
        "head_dim": a.head_size,
        "hidden_act": a.activation,
        "normalization": a.normalization,
        "norm_eps": a.norm_epsilon,
        "zero_centered_norm": a.zero_centered_norm,
        "linear_bias": a.linear_bias,
        "qkv_bias": a.qkv_bias,
        "qk_norm": a.qk_norm,
        "rope_theta": a.rotary_base,
        "partial_rotary_factor": a.rotary_fraction,
        "input_interface": a.interface,
        "token_code": code,
    }
    names = {
        "norm1": ("attention.norm",),
        "norm2": ("mlp.norm",),
        QKV: ("attention.qkv",),
        PROJ: ("attention.proj",),
        FC1: ("mlp.fc1",),
        FC2: ("mlp.fc2",),
    }

    def layer(i: int) -> Iterator[Piece]:
        yield from layer_pieces(a, f"layers.{i}.", names, {})
        for which in ("q", "k") if a.qk_norm else ():
            for n in norm_parameters(a):
                key = f"self_attention.{which}_layernorm.{n}"
                yield Piece(key, None, (f"layers.{i}.attention.{which}_norm.{n}",))

    pieces = model_pieces(a, layer, "norm", "lm_head.weight")
    if a.interface in ("learned", "lowdim"):
        pieces.append(Piece(TABLE if a.interface == "learned" else LOWDIM, None, ("input.weight",)))
    return Form(config, pieces, None, {})
