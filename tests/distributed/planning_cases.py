"""What the planner's tests run in a process of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

SMALL = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --ffn-hidden-size 160 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --hidden-dropout 0 --attention-dropout 0 "
    "--vocab-size 250 --make-vocab-size-divisible-by 16 --seq-length 32 --micro-batch-size 1 "
    "--global-batch-size 8 --train-iters 1 --lr 1e-3 --bf16 --use-distributed-optimizer "
    "--data-path unused"
)


def parse(flags: str, world_size: int) -> Any:
    from fixedcode_megatron.config import parse_args

    return parse_args(flags.split(), world_size=world_size)


def estimate_and_rehearse(cases: list[tuple[int, int, str]]) -> list[dict[str, tuple[Any, Any]]]:
    """(estimate, real program) of each figure, for (world size, rank, flags)."""
    from fixedcode_megatron.planning.activations import peak_activations
    from fixedcode_megatron.planning.communication import step_traffic
    from fixedcode_megatron.planning.parameters import chunk_parameters
    from fixedcode_megatron.planning.rank import rank_shape
    from fixedcode_megatron.planning.rehearsal import rehearse
    from fixedcode_megatron.planning.states import state_bytes

    dist.destroy_process_group()
    found = []
    for world_size, rank, flags in cases:
        cfg = parse(flags, world_size)
        t = cfg.transformer
        per_stage = world_size // t.pipeline_model_parallel_size
        shape = rank_shape(cfg, world_size, rank // per_stage)
        state = state_bytes(shape, rank % per_stage // t.tensor_model_parallel_size)
        real = rehearse(cfg, world_size=world_size, rank=rank)
        found.append(
            {
                "shapes": ([p for chunk in chunk_parameters(shape) for p in chunk], real.shapes),
                "parameters": (state.parameters, real.parameter_bytes),
                "gradients": (state.gradients, real.gradient_bytes),
                "optimizer": (state.optimizer, real.optimizer_bytes),
                "traffic": (step_traffic(shape).rows(), real.traffic.rows()),
                "activations": (peak_activations(shape, fused=False), real.activation_bytes),
            }
        )
    return found


def estimate_and_allocate(flags: str) -> tuple[int, int]:
    """Peak of activations: the estimate, and what torch's CPU allocator hands out in a step."""
    from fixedcode_megatron import runtime as run_time
    from fixedcode_megatron.model.gpt import run_vocabulary
    from fixedcode_megatron.planning.activations import peak_activations
    from fixedcode_megatron.planning.rank import rank_shape
    from fixedcode_megatron.training.step import run_microbatches
    from fixedcode_megatron.training.trainer import build_trainer

    cfg = parse(flags, 1)
    trainer = build_trainer(cfg, run_time.initialize(cfg), run_vocabulary(cfg, 250))
    ids = torch.randint(250, (cfg.training.micro_batch_size, cfg.model.seq_length))
    batch = dict(tokens=ids, labels=ids, position_ids=ids, loss_mask=torch.ones(ids.shape))

    def step() -> None:
        run_microbatches(trainer, [iter([batch] * 2)], num_microbatches=2)

    step()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak_activations(rank_shape(cfg, 1), fused=False), peak
