"""Which modules a transformer layer is made of: Transformer Engine's or the torch-native ones."""

from __future__ import annotations

from typing import Any

from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from fixedcode_megatron.model.experts import has_experts, install_fixes
from fixedcode_megatron.model.folding import FoldedLayerNormColumnParallelLinear
from fixedcode_megatron.model.layers import CoreAttention, LayerNormColumnParallelLinear, Norm


def block_spec(
    config: TransformerConfig,
    implementation: str,
    *,
    vp_stage: int | None = None,
    pp_rank: int | None = None,
    fold_first_layer: bool = False,
) -> TransformerBlockSubmodules:
    """Layers and final norm of one pipeline stage (or virtual stage).

    Parameters
    ----------
    config
        megatron-core's configuration; decides norms, experts and the split into stages.
    implementation
        `transformer_engine` or `local`.
    vp_stage, pp_rank
        Virtual stage and pipeline rank to build for.
    fold_first_layer
        Build layer 1, if it is on this stage, for a token code as its input (see `folding`).
    """
    if implementation == "transformer_engine":
        from megatron.core.extensions.transformer_engine import TENorm

        make, final_norm = _transformer_engine_layer, TENorm
    else:
        make, final_norm = local_layer, Norm
    count = get_num_layers_to_build(config, vp_stage=vp_stage, pp_rank=pp_rank)
    first = get_transformer_layer_offset(config, vp_stage, pp_rank) if count else 0
    layers = [make(config, experts=has_experts(config, first + i)) for i in range(count)]
    if fold_first_layer and count and first == 0:
        layers[0] = local_layer(
            config,
            experts=has_experts(config, 0),
            linear_qkv=FoldedLayerNormColumnParallelLinear,
        )
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=final_norm)


def _transformer_engine_layer(config: TransformerConfig, *, experts: bool) -> ModuleSpec:
    return get_gpt_layer_with_transformer_engine_spec(
        num_experts=config.num_moe_experts if experts else None,
        moe_grouped_gemm=config.moe_grouped_gemm,
        qk_layernorm=config.qk_layernorm,
        qk_l2_norm=config.qk_l2_norm,
    )


def local_layer(
    config: TransformerConfig,
    *,
    experts: bool = False,
    linear_qkv: type = LayerNormColumnParallelLinear,
) -> ModuleSpec:
    """One torch-native transformer layer, in the shape of Transformer Engine's fused modules."""
    layer = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if experts else None,
        qk_layernorm=config.qk_layernorm,
        qk_l2_norm=config.qk_l2_norm,
        normalization="RMSNorm",
    )
    modules = layer.submodules
    modules.input_layernorm = IdentityOp
    # Megatron's local layer renames its separate norms on saving; here the names are right already.
    modules.sharded_state_dict_keys_map = {}
    attention = modules.self_attention.submodules
    attention.linear_qkv = linear_qkv
    attention.core_attention = CoreAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = Norm
    if experts:  # the router needs the normed tokens, too
        modules.pre_mlp_layernorm = Norm
        install_fixes()
    else:
        modules.pre_mlp_layernorm = IdentityOp
        _mlp_submodules(modules.mlp).linear_fc1 = LayerNormColumnParallelLinear
    return layer


def _mlp_submodules(mlp: Any) -> Any:
    """The MLP's submodules: a ModuleSpec up to megatron-core 0.17, a partial from then on."""
    return mlp.submodules if isinstance(mlp, ModuleSpec) else mlp.keywords["submodules"]
