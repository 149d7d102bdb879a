"""What a checkpoint's model is, from the configuration that is saved with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fixedcode_megatron.codes import TokenCode
from fixedcode_megatron.errors import UserError

# Settings that change a model's function, with the values under which it is one of ours to export.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "num_moe_experts": (None,),
    "apply_query_key_layer_scaling": (False,),
    "softmax_scale": (None,),
    "qk_l2_norm": (False,),
    "no_rope_freq": (None,),
    "window_size": (None,),
    "softmax_type": ("vanilla",),
    "attention_output_gate": (False,),
    "multi_latent_attention": (False,),
    "mtp_num_layers": (None, 0),
    "activation_func_clamp_value": (None,),
    "glu_linear_offset": (0.0,),
    "rotary_interleaved": (False,),
    "apply_residual_connection_post_layernorm": (False,),
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder-only transformer with any of our input interfaces.

    Attributes
    ----------
    vocab_size
        V; ids are 0..V-1 and tables have V rows here, whatever Megatron pads them to.
    activation
        `silu` (gated), `relu2`, `gelu` (exact) or `gelu_pytorch_tanh`.
    linear_bias, qkv_bias
        Whether the linear layers (but the head), and whether the QKV projection, have biases.
    rotary_fraction
        Share of each head that is rotated; 0 for no positions at all.
    zero_centered_norm
        Norms multiply by weight + 1.
    interface
        `learned`, `binary`, `gf2`, `random` or `lowdim`.
    code
        For `lowdim` it says only how wide rows are and how they are lifted.
    """

    vocab_size: int
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_heads: int
    num_groups: int
    head_size: int
    max_positions: int
    activation: str
    normalization: str
    norm_epsilon: float
    zero_centered_norm: bool
    linear_bias: bool
    qkv_bias: bool
    qk_norm: bool
    rotary_base: float
    rotary_fraction: float
    tied_head: bool
    interface: str
    code: TokenCode | None = None

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate."""
        return self.activation == "silu"

    @property
    def group_rows(self) -> int:
        """Rows of the QKV projection that belong to one query group: its queries, key, value."""
        return (self.num_heads // self.num_groups + 2) * self.head_size


def architecture_of(common: Mapping[str, Any]) -> Architecture:
    """The architecture of a checkpoint of ours.

    Parameters
    ----------
    common
        The checkpoint's common state.

    Raises
    ------
    UserError
        If the model is one that only Megatron runs.
    """
    saved = common["config"]
    for name, plain in _PLAIN.items():
        if saved.get(name, plain[0]) not in plain:
            trained = "without it" if plain[0] is None else f"with {plain[0]}"
            raise UserError(
                f"--{name.replace('_', '-')} {saved[name]}: the exported forms have no such thing; "
                f"only models trained {trained} can be converted"
            )
    code, vocab_size = common["token_code"], common["vocab_size"]
    return Architecture(
        vocab_size=vocab_size,
        num_layers=saved["num_layers"],
        hidden_size=saved["hidden_size"],
        ffn_hidden_size=saved["ffn_hidden_size"],
        num_heads=saved["num_attention_heads"],
        num_groups=saved["num_query_groups"],
        head_size=saved["kv_channels"],
        max_positions=saved["max_position_embeddings"],
        activation=_activation(saved, common),
        normalization=saved["normalization"],
        norm_epsilon=saved["layernorm_epsilon"],
        zero_centered_norm=saved["layernorm_zero_centered_gamma"],
        linear_bias=saved["add_bias_linear"],
        qkv_bias=saved["add_bias_linear"] or saved["add_qkv_bias"],
        qk_norm=saved["qk_layernorm"],
        rotary_base=float(saved["rotary_base"]),
        rotary_fraction=_rotary_fraction(saved),
        tied_head=not saved["untie_embeddings_and_output_weights"],
        interface=common["input_interface"],
        code=_lowdim_code(saved, vocab_size) if code is None else TokenCode.from_json(code),
    )


def _activation(saved: Mapping[str, Any], common: Mapping[str, Any]) -> str:
    if saved["swiglu"]:
        return "silu"
    if saved["squared_relu"]:
        return "relu2"
    # megatron-core's fused GELU is the tanh approximation; it needs biases and a GPU.
    fused = common.get("bias_activation_fusion", saved["bias_activation_fusion"])
    if fused is None:  # an older checkpoint, which does not say what it was trained with
        on_cpu = saved["device"] == "cpu" or common["versions"]["torch"].endswith("+cpu")
        fused = not on_cpu
    return "gelu_pytorch_tanh" if fused and saved["add_bias_linear"] else "gelu"


def _rotary_fraction(saved: Mapping[str, Any]) -> float:
    return float(saved["rotary_percent"]) if saved["position_embedding_type"] == "rope" else 0.0


def _lowdim_code(saved: Mapping[str, Any], vocab_size: int) -> TokenCode | None:
    if saved["input_interface"] != "lowdim":
        return None
    return TokenCode.binary(
        vocab_size,
        num_bits=saved["code_bits"],
        lift=saved["code_lift"],
        allow_partial_tile=saved["code_allow_partial_tile"],
    )
