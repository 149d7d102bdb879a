"""Predicted time of one training step, from a roofline of each part.

A matrix product takes its FLOPs at a share of the peak plus its bytes at a share of the memory's
bandwidth; everything else takes its bytes; collectives take their bytes over the slowest link they
cross plus a latency. What can hide behind computation is subtracted. See docs/scaling.md for how
well this does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from fixedcode_megatron.planning.activations import kept_by_layer
from fixedcode_megatron.planning.hardware import DEFAULT_EFFICIENCY, Efficiency, Gpu
from fixedcode_megatron.planning.parameters import chunk_parameters, count
from fixedcode_megatron.planning.rank import RankShape
from fixedcode_megatron.planning.states import buckets

_BACKWARD = 2 / 3
"""Of a micro-batch's time: its products are twice the forward pass's."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one step by cause; they add up to the step.

    Attributes
    ----------
    input_interface, layers, head
        Computation of all micro-batches.
    tensor_parallel, context_parallel, pipeline_messages, data_parallel
        Communication that nothing hides.
    bubble
        Waiting of the pipeline for its first and last micro-batches.
    optimizer
        The update, gradient norm and clipping.
    """

    input_interface: float
    layers: float
    head: float
    tensor_parallel: float
    context_parallel: float
    pipeline_messages: float
    bubble: float
    data_parallel: float
    optimizer: float

    @property
    def total(self) -> float:
        return sum(getattr(self, f.name) for f in fields(self))


class StepModel:
    """Times the parts of a step on one rank.

    Parameters
    ----------
    rank
        A rank of the slowest stage (the last one: it has the head).
    gpu, efficiency
        The machine.
    flash_attention
        False for programs that write the attention scores to memory.
    """

    def __init__(
        self,
        rank: RankShape,
        gpu: Gpu,
        efficiency: Efficiency = DEFAULT_EFFICIENCY,
        *,
        flash_attention: bool = True,
    ) -> None:
        self.rank, self.gpu, self.efficiency = rank, gpu, efficiency
        self.flash_attention = flash_attention

    def step_time(self) -> StepTime:
        """Seconds of one step by cause."""
        r, n = self.rank, self.rank.microbatches
        forward, backward = self._layer_forward(), 2 * self._layer_forward()
        if not self.flash_attention:
            scores = self._attention_scores()
            forward, backward = forward + scores, backward + 2 * scores
            if r.recompute == "selective":
                backward += scores
        if r.recompute == "full":
            backward += forward
        layers = r.layers * r.chunks
        compute = layers * (forward + backward)
        # Stages wait for the slowest, which has the head; the input interface is on another.
        head = self._head() if r.has_head else 0.0
        embed = self._input() if r.has_input else 0.0
        exposed = self._tensor_parallel(layers)
        ring = self._context_parallel(layers)
        messages = self._messages()
        microbatch = compute + head + embed + exposed + ring + messages
        bubble = (r.pp - 1) / r.chunks * (compute + exposed + ring + messages)
        return StepTime(
            input_interface=n * embed,
            layers=n * compute,
            head=n * head,
            tensor_parallel=n * exposed,
            context_parallel=n * ring,
            pipeline_messages=n * messages,
            bubble=bubble,
            data_parallel=self._data_parallel(microbatch),
            optimizer=self._optimizer(),
        )

    def _matmul(self, rows: int, inner: int, columns: int, *, fp8: bool = False) -> float:
        """Seconds of one product [rows, inner] x [inner, columns]."""
        share = self.efficiency.matmul_fp8 if fp8 else self.efficiency.matmul
        size = self.rank.element_size
        moved = size * (rows * inner + inner * columns + rows * columns)
        reached = self.gpu.peak(fp8=fp8) * share
        return 2 * rows * inner * columns / reached + self._memory(moved)

    def _memory(self, num_bytes: float) -> float:
        return num_bytes / (self.gpu.bandwidth * self.efficiency.memory) + self.efficiency.kernel

    def _tokens(self) -> int:
        return self.rank.sequence * self.rank.batch

    def _layer_forward(self) -> float:
        r, tokens = self.rank, self._tokens()
        up = (2 if r.gated else 1) * r.mlp
        products = (
            (r.hidden, r.query + 2 * r.key_value),
            (r.query, r.hidden),
            (r.hidden, up),
            (r.mlp, r.hidden),
        )
        seconds = sum(self._matmul(tokens, a, b, fp8=r.fp8) for a, b in products)
        # Half of the scores are masked and skipped; context parallelism sees the whole sequence.
        scores = 2 * tokens * r.sequence * r.cp * r.query
        seconds += scores / (self.gpu.peak() * self.efficiency.attention)
        # Norms, rotation, activation, residuals: each kept byte is written and read about twice.
        seconds += self._memory(2 * kept_by_layer(r, fused=True)) + 8 * self.efficiency.kernel
        if r.fp8:  # casts of the inputs to 8 bits, twice (as they are and transposed)
            seconds += self._memory(tokens * (2 * r.hidden + r.query + r.mlp) * 2 * 2)
        return seconds

    def _attention_scores(self) -> float:
        """Seconds of passing the scores through memory, forward."""
        r = self.rank
        scores = self._tokens() * r.sequence * r.heads
        return self._memory(self.efficiency.score_passes * scores * r.element_size)

    def _head(self) -> float:
        r, tokens = self.rank, self._tokens()
        seconds = 3 * self._matmul(tokens, r.hidden, r.vocabulary)
        seconds += self._memory(self.efficiency.logit_bytes * tokens * r.vocabulary)
        return seconds + self._memory(8 * r.vocabulary * r.hidden)  # an FP32 gradient, added to

    def _input(self) -> float:
        """Writing the input; a table is read, too, and its gradient is sorted and added up."""
        r, one = self.rank, self.rank.activation
        if r.interface != "learned":
            return self._memory(one / r.sequence_shards)
        table = r.vocabulary * r.hidden
        return (
            self._memory(4 * one) + self._memory(4 * one) + self._memory(table * 2 * 2 + table * 8)
        )

    def _tensor_parallel(self, layers: int) -> float:
        """Seconds per micro-batch: of a layer's ten passes two hide behind matrix products."""
        r = self.rank
        if r.tp == 1:
            return 0.0
        one = self._collective(r.activation, r.tp, spread=1)
        forward = 4 * (2 if r.recompute == "full" else 1)
        learned = 2 if r.has_input and r.interface == "learned" else 0
        return one * (layers * (forward + 4) + 3 * r.has_head + learned)

    def _context_parallel(self, layers: int) -> float:
        """Seconds per micro-batch of the ring of keys and values, less what is assumed to hide."""
        r = self.rank
        if r.cp == 1:
            return 0.0
        keys_and_values = 2 * self._tokens() * r.key_value * r.element_size * r.cp
        rounds = 3 * layers  # forward once, backward with the gradients
        each = self._collective(keys_and_values, r.cp, spread=r.tp)
        return self.efficiency.shown_ring * rounds * each

    def _messages(self) -> float:
        r = self.rank
        if r.pp == 1:
            return 0.0
        size = r.activation / r.sequence_shards
        inside = 2 * r.tp * r.cp * r.dp <= self.gpu.per_node
        bandwidth = self.gpu.link if inside else self.gpu.network
        each = size / (bandwidth * self.efficiency.link) + self.efficiency.latency
        return 2 * r.chunks * each * (self.efficiency.shown_messages if r.chunks > 1 else 1.0)

    def _data_parallel(self, microbatch: float) -> float:
        """Reduction of gradients and gathering of parameters, less what overlaps."""
        r = self.rank
        size = sum(bucket.size for chunk in buckets(r) for bucket in chunk)
        spread = r.tp
        if not r.distributed_optimizer:
            gradients = 2 * self._collective(size * r.gradient_element_size, r.replicas, spread)
            return max(0.0, gradients - r.overlap_gradients * microbatch * _BACKWARD)
        reduce = self._collective(size * r.gradient_element_size, r.replicas, spread)
        gather = self._collective(size * r.element_size, r.replicas, spread)
        # The last bucket's reduction and the first one's gathering always show.
        count_buckets = max(1, len(buckets(r)[0]))
        if r.overlap_gradients:
            reduce = max(reduce / count_buckets, reduce - microbatch * _BACKWARD)
        if r.overlap_parameters:
            gather = max(gather / count_buckets, gather - microbatch * (1 - _BACKWARD))
        return reduce + gather

    def _collective(self, num_bytes: float, ranks: int, spread: int) -> float:
        """Seconds of a ring over `ranks` ranks that are `spread` apart."""
        if ranks == 1:
            return 0.0
        wire = num_bytes * (ranks - 1) / ranks
        latency = self.efficiency.latency * (1 + math.log2(ranks))
        return wire / (self._ring(ranks, spread) * self.efficiency.link) + latency

    def _ring(self, ranks: int, spread: int) -> float:
        """Bytes/s around a ring: between nodes it has the adapters of all its ranks in a node."""
        if ranks * spread <= self.gpu.per_node:
            return self.gpu.link
        return min(self.gpu.link, self.gpu.network * max(1, self.gpu.per_node // spread))

    def _optimizer(self) -> float:
        r = self.rank
        elements = sum(count(chunk) for chunk in chunk_parameters(r))
        updated = elements / (r.replicas if r.distributed_optimizer else 1)
        # Per element: gradient, FP32 copy and two moments read, the last three and the parameter
        # written. Besides, the norm reads the gradient once more, and all gradients are zeroed.
        return self._memory(updated * 34) + self._memory(elements * r.gradient_element_size)
