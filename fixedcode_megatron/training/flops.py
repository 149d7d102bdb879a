"""Model FLOPs and the utilisation (MFU) that follows from them.

Conventions, stated because they differ between programs: a multiply-add counts 2; backward counts
twice forward; recomputation is not counted; attention scores are counted in full, not halved for
the causal mask; norms, activations and the softmax are left out. The input interface is no matrix
product and adds nothing, be it computed or looked up; the head is counted over the true vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig

# Dense peak FLOP/s of one device (no sparsity) at 16 bits, from the vendors' data sheets.
DENSE_PEAK_16_BIT = {
    "H200": 989.4e12,
    "H100 PCIe": 756.0e12,
    "H100 NVL": 835.0e12,
    "H100": 989.4e12,
    "H800": 989.4e12,
    "A100": 312.0e12,
    "A800": 312.0e12,
}


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

    @property
    def flops_per_token(self) -> float:
        """Forward and backward FLOPs of one token of a sequence of `seq_length`."""
        h = self.hidden_size
        query = self.num_attention_heads * self.kv_channels
        key_value = 2 * self.num_query_groups * self.kv_channels
        mlp_matrices = 3 if self.gated_linear_unit else 2
        layer = (
            h * (query + key_value)  # linear_qkv
            + query * h  # linear_proj
            + 2 * query * self.seq_length  # scores and context
            + mlp_matrices * h * self.ffn_hidden_size
        )
        forward = 2 * (self.num_layers * layer + h * self.vocab_size)
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
    )


def peak_flops(device_name: str, *, sixteen_bit: bool) -> float | None:
    """Dense peak of a device in FLOP/s, or None where it is not known (never a guess)."""
    if not sixteen_bit:
        return None
    for name, peak in DENSE_PEAK_16_BIT.items():
        if all(word in device_name for word in name.split()):
            return peak
    return None
