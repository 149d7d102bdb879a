"""Names and shapes of one rank's parameters, in the order in which the model lists them."""

from __future__ import annotations

import math

from fixedcode_megatron.planning.rank import RankShape

Parameters = list[tuple[str, tuple[int, ...]]]


def chunk_parameters(rank: RankShape) -> list[Parameters]:
    """The parameters of each model chunk of this rank."""
    chunks = []
    for chunk in range(rank.chunks):
        found: Parameters = []
        if rank.has_input and chunk == 0 and rank.interface == "learned":
            found.append(("embedding.word_embeddings.weight", (rank.vocabulary, rank.hidden)))
        for layer in range(rank.layers):
            found += [(f"decoder.layers.{layer}.{name}", shape) for name, shape in _layer(rank)]
        if rank.has_head and chunk == rank.chunks - 1:
            found += _norm("decoder.final_layernorm.", rank, rank.hidden)
            found.append(("output_layer.weight", (rank.vocabulary, rank.hidden)))
        chunks.append(found)
    return chunks


def count(parameters: Parameters) -> int:
    """Elements of all parameters."""
    return sum(math.prod(shape) for _, shape in parameters)


def _layer(rank: RankShape) -> Parameters:
    h, qkv = rank.hidden, rank.query + 2 * rank.key_value
    up = (2 if rank.gated else 1) * rank.mlp
    attention, mlp = "self_attention.", "mlp."
    found: Parameters = [(f"{attention}linear_proj.weight", (h, rank.query))]
    if rank.linear_bias:
        found.append((f"{attention}linear_proj.bias", (h,)))
    found.append((f"{attention}linear_qkv.weight", (qkv, h)))
    if rank.qkv_bias:
        found.append((f"{attention}linear_qkv.bias", (qkv,)))
    found += _norm(f"{attention}linear_qkv.layer_norm_", rank, h)
    if rank.qk_norm:
        for name in ("q_layernorm.", "k_layernorm."):
            found += _norm(attention + name, rank, rank.head_width)
    found.append((f"{mlp}linear_fc1.weight", (up, h)))
    if rank.linear_bias:
        found.append((f"{mlp}linear_fc1.bias", (up,)))
    found += _norm(f"{mlp}linear_fc1.layer_norm_", rank, h)
    found.append((f"{mlp}linear_fc2.weight", (h, rank.mlp)))
    if rank.linear_bias:
        found.append((f"{mlp}linear_fc2.bias", (h,)))
    return found


def _norm(prefix: str, rank: RankShape, width: int) -> Parameters:
    found: Parameters = [(f"{prefix}weight", (width,))]
    if rank.layer_norm:
        found.append((f"{prefix}bias", (width,)))
    return found
