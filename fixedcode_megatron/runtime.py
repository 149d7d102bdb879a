"""Start-up and shutdown of one training process: device, process groups, threads, seeds.

Only this module and `cpu_platform` know whether the program runs on CPUs (gloo) or GPUs (NCCL).
"""

from __future__ import annotations

import math
import os
import random
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from fixedcode_megatron import cpu_platform, determinism, tp_overlap
from fixedcode_megatron.errors import UserError

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Where this process runs.

    Attributes
    ----------
    device
        `cpu` or the CUDA device of this rank.
    backend
        torch.distributed backend of the default group.
    rank, world_size, local_rank
        As torchrun counts them; 0, 1, 0 without a launcher.
    started
        `time.monotonic()` at start-up.
    """

    device: torch.device
    backend: str
    rank: int
    world_size: int
    local_rank: int
    started: float = field(default_factory=time.monotonic)

    @property
    def device_name(self) -> str:
        """Name of the accelerator, or `cpu`."""
        if self.device.type == "cpu":
            return "cpu"
        return torch.cuda.get_device_name(self.device)

    def synchronize(self) -> None:
        """Wait for the device to finish what was queued (does nothing on a CPU)."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def world_size_from_environment() -> int:
    """Number of processes that the launcher started (1 without a launcher)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def initialize(cfg: RunConfig) -> Runtime:
    """Prepare this process and its process groups for the layout that `cfg` asks for."""
    if cfg.transformer.deterministic_mode:
        determinism.enforce()
    runtime = _start_device(cfg)
    _init_process_group(cfg, runtime)
    _init_model_parallel(cfg)
    tp_overlap.initialize(cfg)
    _seed(cfg)
    return runtime


def initialize_single(cfg: RunConfig) -> Runtime:
    """Prepare one process on the CPU, whatever the launcher says (to build on the meta device)."""
    cpu_platform.install()
    runtime = Runtime(
        device=torch.device("cpu"), backend="gloo", rank=0, world_size=1, local_rank=0
    )
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    _init_model_parallel(cfg)
    _seed(cfg)
    return runtime


def shutdown() -> None:
    """Leave the process groups; safe to call twice."""
    if dist.is_initialized():
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def _start_device(cfg: RunConfig) -> Runtime:
    from fixedcode_megatron.config import checks_graphs

    wanted, local_rank = cfg.runtime.device, int(os.environ.get("LOCAL_RANK", "0"))
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "--device cuda: torch sees no CUDA device here "
            f"(torch {torch.__version__}); use --device cpu or a CUDA build of torch"
        )
    on_gpu = torch.cuda.is_available() and wanted != "cpu"
    if on_gpu and local_rank >= torch.cuda.device_count():
        raise UserError(
            f"local rank {local_rank} has no GPU: this host shows {torch.cuda.device_count()}; "
            "start at most that many processes here (torchrun --nproc-per-node)"
        )
    if on_gpu:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        if checks_graphs.wanted(cfg):
            torch.cuda.set_stream(torch.cuda.Stream())  # the default one cannot be recorded
    else:
        if torch.cuda.is_available():
            raise UserError("--device cpu: hide the GPUs as well (CUDA_VISIBLE_DEVICES=)")
        device = torch.device("cpu")
        cpu_platform.install()
        cpu_platform.keep_allocated_memory()
        _set_cpu_threads()
    backend = cfg.runtime.distributed_backend
    if backend == "auto":
        backend = "nccl" if on_gpu else "gloo"
    if backend == "nccl":
        # A rank whose peer failed ends instead of waiting for it; a user's own setting stays.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if backend == "nccl" and not on_gpu:
        raise UserError("--distributed-backend nccl needs GPUs; use gloo on CPUs")
    return Runtime(
        device=device,
        backend=backend,
        rank=int(os.environ.get("RANK", "0")),
        world_size=world_size_from_environment(),
        local_rank=local_rank,
    )


def _set_cpu_threads() -> None:
    """Share the CPUs among this host's ranks (torchrun's own default is one thread each)."""
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if local_world_size == 1 and "OMP_NUM_THREADS" in os.environ:
        return
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_world_size))


def collective_timeout(cfg: RunConfig) -> float:
    """Minutes until a collective fails: later than the hang watch, which says more."""
    hang = cfg.runtime.hang_timeout_minutes or 0.0
    return max(cfg.runtime.distributed_timeout_minutes, hang + 1)


def _init_process_group(cfg: RunConfig, runtime: Runtime) -> None:
    if dist.is_initialized():
        return
    timeout = timedelta(minutes=collective_timeout(cfg))
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group(runtime.backend, timeout=timeout)
        return
    if runtime.world_size > 1:
        raise UserError(
            f"WORLD_SIZE is {runtime.world_size} but MASTER_ADDR is not set: start with torchrun, "
            "or export MASTER_ADDR and MASTER_PORT"
        )
    dist.init_process_group(
        runtime.backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout
    )


def _init_model_parallel(cfg: RunConfig) -> None:
    from megatron.core import parallel_state

    layout = cfg.transformer
    parallel_state.initialize_model_parallel(
        layout.tensor_model_parallel_size,
        layout.pipeline_model_parallel_size,
        layout.virtual_pipeline_model_parallel_size,
        context_parallel_size=layout.context_parallel_size,
        expert_model_parallel_size=layout.expert_model_parallel_size,
        expert_tensor_parallel_size=layout.expert_tensor_parallel_size,
        num_distributed_optimizer_instances=cfg.ddp.num_distributed_optimizer_instances,
        distributed_timeout_minutes=math.ceil(collective_timeout(cfg)),
        create_gloo_process_groups=False,
    )


def _seed(cfg: RunConfig) -> None:
    """Seed every generator as Megatron does: pipeline stages differ, data-parallel ranks agree."""
    from megatron.core import parallel_state, tensor_parallel

    seed = cfg.training.seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    # CUDA graphs need Transformer Engine's tracker, whose generators a replay moves on.
    tensor_parallel.model_parallel_cuda_manual_seed(
        seed, te_rng_tracker=cfg.transformer.use_te_rng_tracker, force_reset_rng=True
    )
