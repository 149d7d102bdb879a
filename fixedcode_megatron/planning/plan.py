"""A plan: one layout with its memory, communication, speed and cost."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fixedcode_megatron.planning.activations import peak_activations
from fixedcode_megatron.planning.communication import step_traffic
from fixedcode_megatron.planning.hardware import DEFAULT_EFFICIENCY, Gpu
from fixedcode_megatron.planning.parameters import chunk_parameters
from fixedcode_megatron.planning.rank import RankShape, rank_shape
from fixedcode_megatron.planning.states import state_bytes
from fixedcode_megatron.planning.timing import StepModel, StepTime
from fixedcode_megatron.planning.traffic import Traffic
from fixedcode_megatron.training.flops import ModelShape

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one rank by category."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    fp8_weights: int

    @property
    def total(self) -> int:
        return (
            self.parameters + self.gradients + self.optimizer + self.activations + self.fp8_weights
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the planner expects of one layout.

    Attributes
    ----------
    cfg
        The run's configuration with this layout.
    rank
        The rank of the fullest stage; `memory` and `traffic` are its.
    mfu
        Model FLOPs utilisation against the peak of the layers' precision, as training reports it.
    """

    cfg: RunConfig
    gpu: Gpu
    world_size: int
    rank: RankShape
    memory: Memory
    traffic: Traffic
    time: StepTime
    tokens_per_second: float
    mfu: float

    @property
    def fits(self) -> bool:
        """Whether the fullest rank leaves the room that CUDA and NCCL need."""
        return self.memory.total <= self.gpu.memory * (1 - DEFAULT_EFFICIENCY.reserved)

    def hours(self, tokens: float) -> float:
        """Hours of training on `tokens` tokens."""
        return tokens / self.tokens_per_second / 3600

    def flags(self) -> list[str]:
        """The layout as flags."""
        t, flags = self.cfg.transformer, []
        for name in ("tensor", "pipeline", "context"):
            size = getattr(
                t, name + ("_parallel_size" if name == "context" else "_model_parallel_size")
            )
            if size > 1:
                middle = "" if name == "context" else "model-"
                flags += [f"--{name}-{middle}parallel-size", str(size)]
        if t.virtual_pipeline_model_parallel_size:
            chunks = str(t.virtual_pipeline_model_parallel_size)
            flags += ["--virtual-pipeline-model-parallel-size", chunks]
        if t.sequence_parallel:
            flags.append("--sequence-parallel")
        flags += ["--micro-batch-size", str(self.cfg.training.micro_batch_size)]
        if t.recompute_granularity:
            flags += "--recompute-granularity full --recompute-method uniform".split()
            flags += ["--recompute-num-layers", "1"]
        return flags


def make_plan(cfg: RunConfig, gpu: Gpu, world_size: int) -> Plan:
    """Estimate the layout that `cfg` holds on `world_size` GPUs.

    Raises
    ------
    UserError
        For what the planner does not cover, and for FP8 on a GPU without it.
    """
    stages = [
        rank_shape(cfg, world_size, stage)
        for stage in range(cfg.transformer.pipeline_model_parallel_size)
    ]
    memories = [memory_of(rank) for rank in stages]
    fullest = max(range(len(stages)), key=lambda stage: memories[stage].total)
    time = max((StepModel(rank, gpu).step_time() for rank in stages), key=lambda t: t.total)
    assert cfg.training.global_batch_size is not None
    tokens = cfg.training.global_batch_size * cfg.model.seq_length
    per_second = tokens / time.total
    peak = world_size * gpu.peak(fp8=stages[fullest].fp8)
    return Plan(
        cfg=cfg,
        gpu=gpu,
        world_size=world_size,
        rank=stages[fullest],
        memory=memories[fullest],
        traffic=step_traffic(stages[fullest]),
        time=time,
        tokens_per_second=per_second,
        mfu=per_second * flops_per_token(cfg) / peak,
    )


def memory_of(rank: RankShape) -> Memory:
    """Bytes on a rank; FP8 keeps each layer's matrices at 8 bits as they are and transposed."""
    state = state_bytes(rank)
    matrices = sum(
        shape[0] * shape[1]
        for chunk in chunk_parameters(rank)
        for name, shape in chunk
        if name.startswith("decoder.") and len(shape) == 2
    )
    return Memory(
        parameters=state.parameters,
        gradients=state.gradients,
        optimizer=state.optimizer,
        activations=peak_activations(rank, fused=True),
        fp8_weights=2 * matrices if rank.fp8 else 0,
    )


def flops_per_token(cfg: RunConfig) -> float:
    """FLOPs of one token as `training.flops` counts them."""
    t = cfg.transformer
    assert cfg.model.vocab_size is not None
    return ModelShape(
        num_layers=t.num_layers,
        hidden_size=t.hidden_size,
        ffn_hidden_size=t.ffn_hidden_size,
        num_attention_heads=t.num_attention_heads,
        num_query_groups=t.num_query_groups,
        kv_channels=t.kv_channels,
        gated_linear_unit=cfg.model.swiglu,
        vocab_size=cfg.model.vocab_size,
        seq_length=cfg.model.seq_length,
    ).flops_per_token


def with_interface(plan: Plan, interface: str) -> Plan:
    """The same layout with an input interface."""
    if interface == plan.cfg.input.input_interface:
        return plan
    cfg = copy.deepcopy(plan.cfg)
    cfg.set("input_interface", interface)
    if interface == "learned":
        cfg.set("fold_first_layer", False)
    return make_plan(cfg, plan.gpu, plan.world_size)
