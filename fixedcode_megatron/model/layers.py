"""Torch-native layers behind `--transformer-impl local`.

They mirror Transformer Engine's modules (a norm fused with the linear layer that follows it), so
that parameter names, sharded checkpoint keys and checkpoints are the same with either
implementation. Layout of activations is Megatron's [s, b, h].
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import Parameter
from torch.nn.attention.bias import causal_lower_right

from fixedcode_megatron.model import cpu_attention
from fixedcode_megatron.model.context_parallel import gather_sequence, spans_of_rank


def _norm_parameters(
    config: TransformerConfig, hidden_size: int
) -> tuple[Parameter, Parameter | None]:
    """Weight (and bias for LayerNorm) of a norm over `hidden_size`, marked for sequence parallel.

    Under sequence parallelism each rank sees a part of the sequence only, so megatron-core sums the
    gradients of parameters that carry the mark over the tensor-parallel group.
    """
    kind = config.normalization
    if kind not in ("RMSNorm", "LayerNorm"):
        raise ValueError(f"normalization {kind!r} is not supported; use RMSNorm or LayerNorm")
    device = None if config.use_cpu_initialization else torch.cuda.current_device()
    options: dict[str, Any] = dict(dtype=config.params_dtype, device=device)
    initial = 0.0 if config.layernorm_zero_centered_gamma else 1.0
    weight = Parameter(torch.full((hidden_size,), initial, **options))
    bias = Parameter(torch.zeros(hidden_size, **options)) if kind == "LayerNorm" else None
    for parameter in (weight, bias):
        if parameter is not None:
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return weight, bias


def _apply_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float, config: TransformerConfig
) -> Tensor:
    """RMSNorm or LayerNorm over the last dimension of `x`; returns the parameters' dtype.

    An FP32 residual stream above lower-precision parameters is normalised in FP32, as TE does.
    """
    dtype = weight.dtype
    if config.layernorm_zero_centered_gamma:
        weight = weight + 1
    weight = weight.to(x.dtype)
    if config.normalization == "RMSNorm":
        return F.rms_norm(x, (x.shape[-1],), weight, eps).to(dtype)
    assert bias is not None
    return F.layer_norm(x, (x.shape[-1],), weight, bias.to(x.dtype), eps).to(dtype)


class Norm(torch.nn.Module):
    """RMSNorm or LayerNorm (`config.normalization`) that works under sequence parallelism."""

    bias: Parameter | None

    def __init__(
        self,
        config: TransformerConfig,
        hidden_size: int,
        eps: float = 1e-5,
        **_builder_options: Any,
    ) -> None:
        super().__init__()
        self.config, self.eps = config, eps
        self.weight, bias = _norm_parameters(config, hidden_size)
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., hidden_size] over its last dimension."""
        return _apply_norm(x, self.weight, self.bias, eps=self.eps, config=self.config)


class LayerNormColumnParallelLinear(ColumnParallelLinear):
    """A norm and the column-parallel linear layer behind it, with Transformer Engine's names.

    Parameters: `layer_norm_weight` (and `layer_norm_bias` for LayerNorm) [input_size], replicated
    over the tensor-parallel group; `weight` [output_size / tp, input_size]; `bias` where asked for.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: TransformerConfig,
        init_method: Callable[[Tensor], Any],
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(input_size, output_size, config=config, init_method=init_method, **options)
        self.layer_norm_weight, bias = _norm_parameters(config, input_size)
        self.register_parameter("layer_norm_bias", bias)

    def forward(self, input_: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Linear(norm(input_)): [s(/tp), b, h] -> [s, b, output_size / tp] and the skipped bias."""
        normed = _apply_norm(
            input_,
            self.layer_norm_weight,
            self.layer_norm_bias,
            eps=self.config.layernorm_epsilon,
            config=self.config,
        )
        return super().forward(normed, *args, **kwargs)


class CoreAttention(MegatronModule):
    """Scaled dot-product attention on `torch.nn.functional.scaled_dot_product_attention`.

    Grouped-query attention, arbitrary masks and context parallelism are supported; sliding windows
    and packed sequences are not (they are refused when the model is built or called).
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
    ) -> None:
        super().__init__(config=config)
        if config.window_size is not None or config.softmax_type != "vanilla":
            raise ValueError(
                "window_size and softmax_type need --transformer-impl transformer_engine"
            )
        self.attn_mask_type = attn_mask_type
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        self.scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)
        if config.apply_query_key_layer_scaling:
            self.scale /= max(1, layer_number)
        self.cp_group = None
        if config.context_parallel_size > 1:
            assert pg_collection is not None
            self.cp_group = pg_collection.cp

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """Attend.

        Parameters
        ----------
        query
            [sq, b, heads / tp, d].
        key, value
            [sk, b, query groups / tp, d]. Under context parallelism this rank's two slices of the
            sequence, as those of the query are.
        attention_mask
            None for plain causal attention, or bool [b or 1, 1, sq, sk], True where attention is
            forbidden (Megatron's convention). Under context parallelism its columns are those of
            the whole sequence.

        Returns
        -------
        Tensor
            [sq, b, heads / tp * d].
        """
        if packed_seq_params is not None or attention_bias is not None:
            raise ValueError(
                "packed sequences and attention biases need --transformer-impl transformer_engine"
            )
        mask_type = attn_mask_type or self.attn_mask_type
        is_causal = attention_mask is None and mask_type == AttnMaskType.causal
        mask = None if attention_mask is None else ~attention_mask
        if self.cp_group is None:
            return self._attend(query, key, value, mask, is_causal=is_causal)
        key, value = gather_sequence(torch.stack([key, value], 1), self.cp_group).unbind(1)
        if not is_causal:
            return self._attend(query, key, value, mask)
        spans = spans_of_rank(len(key), rank=self.cp_group.rank(), size=self.cp_group.size())
        parts = [
            self._attend(q, key[:seen], value[:seen], causal_lower_right(len(q), seen))
            for q, seen in zip(query.chunk(2), spans, strict=True)
        ]
        return torch.cat(parts)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        is_causal: bool = False,
    ) -> Tensor:
        """As `forward`; `mask` is True where attention is allowed."""
        dropout = self.dropout if self.training else 0.0
        if is_causal and not dropout and len(query) == len(key) and cpu_attention.applies(query):
            return cpu_attention.causal_attention(query, key, value, self.scale).flatten(2)
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))  # [b, heads, s, d]
        with self._dropout_rng():
            context = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                dropout_p=dropout,
                is_causal=is_causal and q.shape[2] > 1,
                scale=self.scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        return context.permute(2, 0, 1, 3).flatten(2)

    def _dropout_rng(self) -> Any:
        """Dropout that differs between tensor-parallel ranks, which hold different heads.

        Under sequence parallelism the whole block already runs with that generator.
        """
        if self.dropout > 0 and self.training and not self.config.sequence_parallel:
            return get_cuda_rng_tracker().fork()
        return contextlib.nullcontext()
