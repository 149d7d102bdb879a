"""Communication of tensor parallelism inside Transformer Engine's matrix products.

`--tp-comm-overlap` makes each product work on the parts of the sequence that are here while the
others are on their way. Transformer Engine keeps buffers for them that all ranks of a node see,
which have to be allocated before the model is built.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from fixedcode_megatron.errors import UserError

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig


def initialize(cfg: RunConfig) -> None:
    """Allocate the buffers; every rank must call it, after the process groups were made.

    Raises
    ------
    UserError
        If `--tp-comm-overlap-cfg` cannot be read, or this machine's GPUs or driver cannot do it.
    """
    t = cfg.transformer
    if not t.tp_comm_overlap:
        return
    from transformer_engine.pytorch.module import base

    modes = base.UserBufferQuantizationMode
    wanted = [modes.FP8 if t.fp8 else modes.NONE]
    if t.fp8 and t.first_last_layers_bf16:
        wanted.append(modes.NONE)
    tokens = cfg.model.seq_length * cfg.training.micro_batch_size // t.context_parallel_size
    try:
        base.initialize_ub(
            shape=[tokens, t.hidden_size],
            tp_size=t.tensor_model_parallel_size,
            quantization_modes=wanted,
            dtype=torch.float16 if t.fp16 else torch.bfloat16,
            ub_cfgs=read_settings(cfg.runtime.tp_comm_overlap_cfg),
            bootstrap_backend=t.tp_comm_bootstrap_backend,
        )
    except RuntimeError as error:
        raise UserError(f"--tp-comm-overlap: {error}; or leave it out") from error


def read_settings(path: str | None) -> dict[str, Any]:
    """Settings of each product, by Transformer Engine's name of it; none without a file."""
    if path is None:
        return {}
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"--tp-comm-overlap-cfg {path}: cannot be read ({error})") from error
    if not isinstance(found, dict) or not all(isinstance(v, dict) for v in found.values()):
        raise UserError(
            f"--tp-comm-overlap-cfg {path}: give settings under the name of each product, such as "
            "'qkv_fprop: {method: ring_exchange, num_sm: 1}'"
        )
    return found
