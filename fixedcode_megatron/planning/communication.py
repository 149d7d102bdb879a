"""Calls and bytes of every collective of one training step on one rank."""

from __future__ import annotations

import math

from fixedcode_megatron.planning.parameters import chunk_parameters
from fixedcode_megatron.planning.rank import RankShape, loss_chunks
from fixedcode_megatron.planning.states import buckets
from fixedcode_megatron.planning.traffic import Traffic


def step_traffic(rank: RankShape) -> Traffic:
    """What a rank sends and receives in one step, context-parallel attention left out."""
    traffic = Traffic()
    _tensor_parallel(rank, traffic)
    _pipeline(rank, traffic)
    _data_parallel(rank, traffic)
    norm_group = rank.world_size if rank.distributed_optimizer else rank.tp * rank.pp
    traffic.add("all_reduce", norm_group, 4)  # the gradient norm
    return traffic


def _tensor_parallel(rank: RankShape, traffic: Traffic) -> None:
    layers, n = rank.layers * rank.chunks, rank.microbatches
    learned = rank.has_input and rank.interface == "learned"
    folded = rank.has_input and rank.folded
    again = 2 if rank.recompute == "full" else 1  # forward passes of each layer
    if rank.sequence_parallel:
        # Forward: gather before QKV and FC1, scatter after the projections. Backward: the
        # gradients the other way round, and both inputs gathered again for the weights' gradients.
        # A head that is fused with the loss has made both gradients before it leaves its input.
        head_gathers = 1 if rank.fused_loss else 2
        gathers = layers * (2 * again + 4) + learned + head_gathers * rank.has_head
        scatters = layers * (2 * again + 2) + learned + rank.has_head
        # A folded first layer needs neither its input nor the input's gradient; where its input is
        # recomputed it gathers the K columns of the code.
        gathers -= folded * (again + 1)
        scatters -= folded
        values = rank.sequence * rank.batch * rank.code_bits * rank.element_size
        traffic.add("all_gather", rank.tp, values, n * folded * (again - 1))
        traffic.add("all_gather", rank.tp, rank.activation, n * gathers)
        traffic.add("reduce_scatter", rank.tp, rank.activation, n * scatters)
    else:
        sums = layers * (2 * again + 2) + learned + rank.has_head - folded
        traffic.add("all_reduce", rank.tp, rank.activation, n * sums)
        if folded:
            vectors = 2 if rank.layer_norm else 1
            traffic.add("all_reduce", rank.tp, rank.hidden * rank.element_size, n * vectors)
    if rank.has_head:
        # Cross entropy over the split vocabulary: maximum, the label's logit, sum of exponentials.
        tokens = rank.sequence * rank.batch
        if rank.fused_loss:
            for chunk in loss_chunks(rank):
                traffic.add("all_reduce", rank.tp, 4 * chunk, n)
                traffic.add("all_reduce", rank.tp, 8 * chunk, n)
        else:
            traffic.add("all_reduce", rank.tp, 4 * tokens, 3 * n)
    if rank.sequence_parallel:
        # Norms saw a part of the sequence each: their gradients are summed once a step.
        norms = sum(
            math.prod(shape)
            for chunk in chunk_parameters(rank)
            for name, shape in chunk
            if "norm" in name or (name.endswith(("proj.bias", "fc2.bias")))
        )
        traffic.add("all_reduce", rank.tp, norms * rank.gradient_element_size)


def _pipeline(rank: RankShape, traffic: Traffic) -> None:
    if rank.pp == 1:
        return
    first, last = rank.has_input, rank.has_head
    messages = rank.microbatches * (2 * rank.chunks - first - last)
    size = rank.activation // rank.sequence_shards
    traffic.add("send", 2, size, messages)
    traffic.add("receive", 2, size, messages)


def _data_parallel(rank: RankShape, traffic: Traffic) -> None:
    for chunk in buckets(rank):
        for bucket in chunk:
            gradients = bucket.size * rank.gradient_element_size
            if rank.distributed_optimizer:
                traffic.add("reduce_scatter", rank.replicas, gradients)
                traffic.add("all_gather", rank.replicas, bucket.size * rank.element_size)
            else:
                traffic.add("all_reduce", rank.replicas, gradients)
