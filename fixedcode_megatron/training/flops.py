"""Model FLOPs, from which the utilisation (MFU) follows.

Conventions, stated because they differ between programs: a multiply-add counts 2; backward counts
twice forward; recomputation is not counted; attention scores are counted in full, not halved for
the causal mask; norms, activations and the softmax are left out. The input interface is no matrix
product and adds nothing, be it computed or looked up; the head is counted over the true vocabulary.
Of a mixture of experts those count that a token passes through: the chosen, the shared, the router.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fixedcode_megatron.model.experts import has_experts

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What the FLOPs of a decoder-only model depend on (sizes in elements)."""

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    gated_linear_unit: bool
    vocab_size: int
    seq_length: int
    num_moe_layers: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    expert_ffn_hidden_size: int = 0
    shared_expert_ffn_hidden_size: int = 0

    @property
    def flops_per_token(self) -> float:
        """Forward and backward FLOPs of one token of a sequence of `seq_length`."""
        h = self.hidden_size
        query = self.num_attention_heads * self.kv_channels
        key_value = 2 * self.num_query_groups * self.kv_channels
        mlp_matrices = 3 if self.gated_linear_unit else 2
        attention = (
            h * (query + key_value)  # linear_qkv
            + query * h  # linear_proj
            + 2 * query * self.seq_length  # scores and context
        )
        dense = mlp_matrices * h * self.ffn_hidden_size
        experts = self.experts_per_token * self.expert_ffn_hidden_size
        experts += self.shared_expert_ffn_hidden_size
        mixture = mlp_matrices * h * experts + h * self.num_experts
        layers = self.num_layers * attention + self.num_moe_layers * mixture
        layers += (self.num_layers - self.num_moe_layers) * dense
        forward = 2 * (layers + h * self.vocab_size)
        return 3.0 * forward


def model_shape(config: TransformerConfig, *, vocab_size: int, seq_length: int) -> ModelShape:
    """The shape of a model that is built with megatron-core's `config`."""
    return ModelShape(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        ffn_hidden_size=config.ffn_hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_query_groups,
        kv_channels=config.kv_channels,
        gated_linear_unit=config.gated_linear_unit,
        vocab_size=vocab_size,
        seq_length=seq_length,
        **_mixture(config),
    )


def _mixture(config: TransformerConfig) -> dict[str, int]:
    """The fields of `ModelShape` that describe a mixture of experts."""
    if not config.num_moe_experts:
        return {}
    return dict(
        num_moe_layers=sum(has_experts(config, layer) for layer in range(config.num_layers)),
        num_experts=config.num_moe_experts,
        experts_per_token=config.moe_router_topk,
        expert_ffn_hidden_size=config.moe_ffn_hidden_size or config.ffn_hidden_size,
        shared_expert_ffn_hidden_size=config.moe_shared_expert_intermediate_size or 0,
    )
