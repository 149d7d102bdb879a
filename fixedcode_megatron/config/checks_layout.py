"""Checks of the layout over ranks, of recompute, and of sequence lengths.

megatron-core leaves most of these to Megatron-LM's argument parser, and trains wrongly, or fails
in the middle of the first step, without them.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from fixedcode_megatron.config import availability, derive, megatron_fields
from fixedcode_megatron.config.checks_model import divisors
from fixedcode_megatron.config.options import flag_of
from fixedcode_megatron.config.tree import OPTIONS

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig


def layout(cfg: RunConfig, world_size: int) -> list[str]:
    """Ranks, stages and sequence slices must come out even."""
    t, problems = cfg.transformer, []
    tp, pp, cp = (
        t.tensor_model_parallel_size,
        t.pipeline_model_parallel_size,
        t.context_parallel_size,
    )
    ranks = derive.model_parallel_size(cfg)
    if rest := world_size % ranks:
        fitting = max(ranks, world_size - rest)
        problems.append(
            f"{world_size} rank{'s' if world_size > 1 else ''} with --tensor-model-parallel-size "
            f"{tp}, --pipeline-model-parallel-size {pp}, --context-parallel-size {cp}: "
            f"{world_size} % {ranks} = {rest}; start {fitting} or {fitting + ranks} ranks, or "
            f"choose sizes whose product divides {world_size} ({divisors(world_size)})"
        )
    problems += _stages(cfg) + _virtual_stages(cfg) + _copies(cfg, world_size)
    return problems + _sequence(cfg) + _experts(cfg, world_size)


def _stages(cfg: RunConfig) -> list[str]:
    t, problems = cfg.transformer, []
    pp, vpp = t.pipeline_model_parallel_size, t.virtual_pipeline_model_parallel_size or 1
    uneven = (
        t.pipeline_model_parallel_layout
        or t.num_layers_in_first_pipeline_stage
        or t.num_layers_in_last_pipeline_stage
        or t.account_for_embedding_in_pipeline_split
        or t.account_for_loss_in_pipeline_split
    )
    if not uneven and (rest := t.num_layers % (pp * vpp)):
        problems.append(
            f"--num-layers {t.num_layers} over {pp * vpp} pipeline stages: {t.num_layers} % "
            f"{pp * vpp} = {rest}; use a number of stages among {divisors(t.num_layers)}, or "
            "--num-layers-in-first-pipeline-stage and the like for uneven stages"
        )
    return problems


def _virtual_stages(cfg: RunConfig) -> list[str]:
    """What says how many virtual stages there are must agree, and their messages must not mix."""
    t, problems = cfg.transformer, []
    pp, vpp = t.pipeline_model_parallel_size, t.virtual_pipeline_model_parallel_size or 1
    if vpp > 1 and pp == 1:
        problems.append(
            "virtual pipeline stages need --pipeline-model-parallel-size of at least 2, found 1"
        )
    if vpp > 1 and pp == 2 and not t.overlap_p2p_comm:
        problems.append(
            "--no-overlap-p2p-comm with virtual stages at --pipeline-model-parallel-size 2: "
            "messages to the same peer get mixed up; leave the flag out, or use 4 stages"
        )
    if t.overlap_p2p_comm and t.batch_p2p_comm:
        problems.append("--overlap-p2p-comm and --batch-p2p-comm exclude each other: drop one")
    per_stage, layers = cfg.model.num_layers_per_virtual_pipeline_stage, derive.split_layers(cfg)
    if per_stage and t.pipeline_model_parallel_layout:
        problems.append(
            "--num-layers-per-virtual-pipeline-stage with --pipeline-model-parallel-layout: the "
            "layout says it; drop the former"
        )
    elif per_stage and layers % (pp * per_stage):
        problems.append(
            f"--num-layers-per-virtual-pipeline-stage {per_stage}: {layers} layers to split are no "
            f"multiple of {pp} * {per_stage}"
        )
    stages = derive.stages_of_layout(cfg)
    if stages and stages % pp == 0 and stages // pp != vpp:
        problems.append(
            f"--virtual-pipeline-model-parallel-size {vpp}: the {stages} stages of "
            f"--pipeline-model-parallel-layout over {pp} ranks make {stages // pp}; leave the flag "
            "out"
        )
    group = t.microbatch_group_size_per_vp_stage
    if vpp > 1 and "microbatch_group_size_per_vp_stage" in cfg.given and group < pp:
        problems.append(
            f"--microbatch-group-size-per-virtual-pipeline-stage {group}: must be at least the "
            f"{pp} pipeline ranks"
        )
    return problems


def _copies(cfg: RunConfig, world_size: int) -> list[str]:
    """Instances of the distributed optimizer share out the data-parallel ranks."""
    instances, problems = cfg.ddp.num_distributed_optimizer_instances, []
    if instances <= 1:
        return []
    ranks = derive.data_parallel_size(cfg, world_size) * cfg.transformer.context_parallel_size
    flag = f"--num-distributed-optimizer-instances {instances}"
    if not cfg.ddp.use_distributed_optimizer:
        problems.append(f"{flag}: needs --use-distributed-optimizer")
    if ranks % instances:
        problems.append(
            f"{flag}: {ranks} data-parallel ranks % {instances} = {ranks % instances}; use one of "
            f"{divisors(ranks)}"
        )
    return problems


def _sequence(cfg: RunConfig) -> list[str]:
    """Sequence parallel cuts into TP slices, context parallel into two slices a rank."""
    t, seq = cfg.transformer, cfg.model.seq_length
    tp = t.tensor_model_parallel_size if t.sequence_parallel else 1
    cp = t.context_parallel_size
    multiple = tp if cp == 1 else cp * math.lcm(2, tp)
    problems = []
    if rest := seq % multiple:
        low = max(multiple, seq - rest)
        problems.append(
            f"--seq-length {seq}: must be a multiple of {multiple} with sequence parallel over "
            f"{tp} and context parallel over {cp} ranks; use {low} or {low + multiple}"
        )
    if cfg.model.max_position_embeddings and cfg.model.max_position_embeddings < seq:
        problems.append(
            f"--max-position-embeddings {cfg.model.max_position_embeddings} is below --seq-length "
            f"{seq}: leave it out or use {seq}"
        )
    return problems


def _experts(cfg: RunConfig, world_size: int) -> list[str]:
    """Experts split over their own groups of ranks."""
    t, problems = cfg.transformer, []
    experts, ep, tp = t.num_moe_experts, t.expert_model_parallel_size, t.tensor_model_parallel_size
    if not experts:
        return [
            f"{flag_of(name)}: does nothing without --num-experts"
            for name in cfg.given
            if name.startswith(("moe_", "expert_")) and cfg.get(name) != OPTIONS[name].default
        ]
    if rest := experts % ep:
        problems.append(
            f"--num-experts {experts} over --expert-model-parallel-size {ep}: {experts} % {ep} = "
            f"{rest}; use a size among {divisors(experts)}"
        )
    pp = t.pipeline_model_parallel_size
    ranks = (t.expert_tensor_parallel_size or tp) * ep * pp
    if rest := world_size % ranks:
        problems.append(
            f"{world_size} ranks with --expert-model-parallel-size {ep}: expert tensor, expert and "
            f"pipeline parallel sizes make {ranks}, {world_size} % {ranks} = {rest}; start "
            f"{max(ranks, world_size - rest)} or {max(ranks, world_size - rest) + ranks} ranks, or "
            f"choose sizes whose product divides {world_size} ({divisors(world_size)})"
        )
    if tp > 1 and not t.sequence_parallel:
        problems.append("--num-experts with tensor parallel ranks: needs --sequence-parallel")
    if t.moe_router_topk > experts:
        problems.append(
            f"--moe-router-topk {t.moe_router_topk}: there are {experts} experts; use at most that"
        )
    if t.moe_token_dispatcher_type == "flex":
        problems.append("--moe-token-dispatcher-type flex: use allgather or alltoall")
    uneven = t.moe_token_dispatcher_type == "alltoall" and ep > 1 and ranks > ep * pp
    if uneven and not availability.on_gpu(cfg):
        problems.append(
            "--moe-token-dispatcher-type alltoall with several expert tensor parallel ranks: gloo "
            "gathers equal parts only; use --expert-tensor-parallel-size 1 or "
            "--moe-token-dispatcher-type allgather"
        )
    return problems


def recompute(cfg: RunConfig) -> list[str]:
    """Flags that recompute nothing: alone, or where there is nothing of the kind."""
    t, problems = cfg.transformer, []
    granularity = t.recompute_granularity
    for name, needed in (
        ("recompute_method", "full"),
        ("recompute_num_layers", "full"),
        ("distribute_saved_activations", "full"),
        ("recompute_modules", "selective"),
    ):
        if cfg.get(name) and name in cfg.given and granularity != needed:
            problems.append(
                f"{flag_of(name)}: does nothing without --recompute-granularity {needed}"
            )
    if t.distribute_saved_activations and t.tensor_model_parallel_size == 1:
        problems.append(
            "--distribute-saved-activations: there is one tensor-parallel rank; leave it out"
        )
    experts = {"moe", "moe_act", "shared_experts"} & set(t.recompute_modules or [])
    if granularity == "selective" and experts and not t.num_moe_experts:
        problems.append(
            f"--recompute-modules {' '.join(sorted(experts))}: there are no experts; leave them out"
        )
    return problems


def uniform_recompute(cfg: RunConfig) -> list[str]:
    """Uniform recompute takes equal runs of layers, so each stage must be a multiple of them."""
    t, run = cfg.transformer, cfg.transformer.recompute_num_layers
    if t.recompute_granularity != "full" or t.recompute_method != "uniform" or not run:
        return []
    counts = _layers_of_stages(cfg)
    if uneven := sorted(count for count in counts if count % run):
        common = math.gcd(*counts)
        return [
            f"--recompute-num-layers {run} with --recompute-method uniform: a stage of {uneven[0]} "
            f"layers is no multiple of it; use a number among {divisors(common)}, or "
            "--recompute-method block"
        ]
    return []


def _layers_of_stages(cfg: RunConfig) -> set[int]:
    """How many transformer layers the stages (virtual ones, too) have, as megatron-core splits."""
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    config = megatron_fields.transformer_config(cfg)
    if config.pipeline_model_parallel_layout is not None:
        stages = itertools.chain(*config.pipeline_model_parallel_layout.layout)
        return {stage.count(LayerType.decoder) for stage in stages}
    virtual = config.virtual_pipeline_model_parallel_size
    return {
        get_num_layers_to_build(config, vp_stage=vp_stage, pp_rank=rank)
        for rank in range(config.pipeline_model_parallel_size)
        for vp_stage in (range(virtual) if virtual else [None])
    }
