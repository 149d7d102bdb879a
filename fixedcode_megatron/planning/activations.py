"""Memory of activations: what the forward pass keeps for the backward pass, and its temporaries.

The terms follow the torch-native layers tensor by tensor. `fused` is what GPUs do: norms keep their
input alone. On CPUs RMSNorm of BF16 also keeps its intermediate results, FP32 attention its
probabilities.
"""

from __future__ import annotations

from fixedcode_megatron.model.cpu_attention import kept_bytes
from fixedcode_megatron.planning.rank import RankShape, loss_chunks


def peak_activations(rank: RankShape, *, fused: bool) -> int:
    """Most bytes of activations and temporaries at once, besides parameters and their states."""
    at_once = microbatches_in_flight(rank)
    layers = rank.layers * rank.chunks
    whole = kept_by_layer(rank, fused=fused)
    each = layer_input(rank) if rank.recompute == "full" else whole
    kept = at_once * (layers * each + (_input(rank) if rank.has_input else 0))
    if rank.recompute == "full":
        kept += whole  # the one that is being recomputed
    working = _layer_backward(rank)
    if rank.has_head:
        kept += _norm(rank, fused=fused)
        head = _fused_head(rank) if rank.fused_loss else _head(rank)
        working = max(working, head - (whole if rank.recompute == "full" else 0))
    return int(kept + working)


def microbatches_in_flight(rank: RankShape) -> float:
    """Micro-batches whose activations a stage holds at once, counted in whole stages.

    One forward, one backward: stage p of P waits for P - p of them. Interleaved stages start
    2 (P - p - 1) + (chunks - 1) P + 1 chunks ahead.
    """
    waiting = rank.pp - rank.stage
    if rank.chunks > 1:
        ahead = 2 * (waiting - 1) + (rank.chunks - 1) * rank.pp + 1
        return min(ahead, rank.microbatches * rank.chunks) / rank.chunks
    return min(waiting, rank.microbatches)


def layer_input(rank: RankShape) -> int:
    """Bytes of a layer's input, [s, b, h]."""
    return rank.activation // rank.sequence_shards


def kept_by_layer(rank: RankShape, *, fused: bool) -> int:
    """Bytes that one layer's forward pass leaves for its backward pass."""
    tokens, size = rank.sequence * rank.batch, rank.element_size
    attention = tokens * (rank.query + 2 * rank.key_value) * size  # QKV
    attention += tokens * (rank.query + rank.key_value) * size  # turned queries and keys
    attention += tokens * rank.query * size  # context
    if rank.recompute != "selective":
        attention += 4 * tokens * rank.heads  # logarithms of the softmax's sums
        if not fused and size == 4 and rank.cp == 1:
            attention += kept_bytes(rank.sequence, rank.batch * rank.heads)
    widths = 3 if rank.gated else 2  # SwiGLU keeps its input's two halves and its output
    mlp = widths * tokens * rank.mlp * size
    return 2 * _norm(rank, fused=fused) + attention + mlp


def _norm(rank: RankShape, *, fused: bool) -> int:
    """A norm's input and output; torch's RMSNorm of BF16 keeps what it computed in FP32, too."""
    one = layer_input(rank)
    statistics = 4 * rank.sequence * rank.batch // rank.sequence_shards
    if fused or rank.layer_norm or rank.element_size == 4:
        return 2 * one + statistics * (2 if rank.layer_norm else 1)
    return 5 * one + statistics


def _input(rank: RankShape) -> int:
    """The input interface's output (the first norm counts it where it keeps its input)."""
    return layer_input(rank)


def _layer_backward(rank: RankShape) -> int:
    """Gradients on their way through an MLP, less what is freed meanwhile."""
    tokens, size = rank.sequence * rank.batch, rank.element_size
    return 2 * layer_input(rank) + tokens * rank.mlp * size


def _fused_head(rank: RankShape) -> int:
    """The head with its loss, a chunk of tokens at a time (see `linear_cross_entropy`)."""
    size, weight = rank.element_size, rank.vocabulary * rank.hidden
    chunk = max(loss_chunks(rank))
    narrow = 2 if size == 2 else 0
    gathered = rank.activation if rank.sequence_parallel else 0
    gradients = rank.activation + 4 * weight
    logits = chunk * rank.vocabulary * (4 + narrow)
    summing = weight * narrow + chunk * rank.hidden * (size + narrow)
    return gathered + gradients + logits + summing


def _head(rank: RankShape) -> int:
    """The FP32 softmax, and the logits or their gradient."""
    logits = rank.sequence * rank.batch * rank.vocabulary
    gathered = rank.activation if rank.sequence_parallel else 0
    return gathered + logits * (4 + rank.element_size)
