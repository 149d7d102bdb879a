"""Checks across fields, and values worked out from others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig


def validate(cfg: RunConfig, world_size: int) -> list[str]:
    """Fill in what follows from other values; return every problem found."""
    t = cfg.transformer
    ranks = t.tensor_model_parallel_size * t.pipeline_model_parallel_size * t.context_parallel_size
    if cfg.training.global_batch_size is None:
        dp = max(1, world_size // ranks)
        cfg.set("global_batch_size", cfg.training.micro_batch_size * dp)
    if cfg.model.max_position_embeddings is None:
        cfg.set("max_position_embeddings", cfg.model.seq_length)
    if t.ffn_hidden_size is None:
        h = t.hidden_size
        cfg.set("ffn_hidden_size", int((4 * h * 2 / 3) / 64) * 64 if cfg.model.swiglu else 4 * h)
    if t.bf16 and "grad_reduce_in_fp32" not in cfg.given:
        cfg.set("grad_reduce_in_fp32", True)
    if cfg.optimizer.min_lr is None:
        cfg.set("min_lr", 0.0)
    return []
