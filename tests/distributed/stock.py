"""megatron-core's own GPT in a bare loop: the independent rival that our entry point must equal.

Nothing of fixedcode_megatron.model or .training builds or trains this model, except the drawing of
initial weights, which both must share, and (where asked for) the attention kernel.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.distributed.cases import checkpoint_keys


def _build(argv: list[str], attention: str) -> tuple[Any, Any, Any]:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    from fixedcode_megatron import runtime
    from fixedcode_megatron.config import parse_args
    from fixedcode_megatron.config.megatron_fields import transformer_config
    from fixedcode_megatron.model.initialization import initialize_weights
    from fixedcode_megatron.model.layers import CoreAttention

    unfused = ["--no-gradient-accumulation-fusion", "--no-bias-swiglu-fusion"]
    cfg = parse_args([*argv, "--input-interface", "learned", *unfused])
    runtime.initialize(cfg)
    config = transformer_config(cfg)
    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = WrappedTorchNorm
    if attention == "ours":
        layer.submodules.self_attention.submodules.core_attention = CoreAttention
    block = TransformerBlockSubmodules(
        layer_specs=[layer] * config.num_layers, layer_norm=WrappedTorchNorm
    )
    model = GPTModel(config, block, 512, cfg.model.seq_length, position_embedding_type="rope")
    initialize_weights([model], config, cfg.training.seed)
    return cfg, config, model


def sharded_keys(argv: list[str]) -> list[str]:
    """Keys of the stock model, which megatron-core maps to Transformer Engine's names."""
    from megatron.core import parallel_state

    _, _, model = _build(argv, attention="megatron")
    metadata = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    return checkpoint_keys(model.sharded_state_dict(metadata=metadata))


def train(argv: list[str], attention: str) -> list[float]:
    """Losses of the stock model, trained on the same samples by torch's AdamW in a bare loop."""
    cfg, _, model = _build(argv, attention)
    batches = _batches(cfg)
    decay = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [dict(params=decay, weight_decay=0.1), dict(params=others, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(
        groups, betas=(cfg.optimizer.adam_beta1, cfg.optimizer.adam_beta2), fused=True
    )
    losses = []
    for iteration in range(1, cfg.training.train_iters + 1):
        total = torch.zeros((), dtype=torch.float64)
        for _ in range(cfg.training.global_batch_size // cfg.training.micro_batch_size):
            loss = _loss(model, next(batches))
            total += loss.detach()
            mean = loss / (cfg.training.micro_batch_size * cfg.model.seq_length)
            (mean / 4).backward()
        losses.append(float(total) / (cfg.training.global_batch_size * cfg.model.seq_length))
        _clip([*decay, *others], 1.0)
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(iteration, cfg)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return losses.float().reshape(-1).sum()


def _batches(cfg: Any) -> Any:
    from fixedcode_megatron import pretrain
    from fixedcode_megatron.data.datasets import BatchIterator, build_datasets

    train, _, _ = build_datasets(
        cfg.data,
        pretrain.load_tokenizer(cfg),
        seq_length=cfg.model.seq_length,
        seed=cfg.training.seed,
        samples=(cfg.training.train_iters * cfg.training.global_batch_size, 0, 0),
    )
    return BatchIterator(
        train,
        consumed_samples=0,
        micro_batch_size=cfg.training.micro_batch_size,
        dp_rank=0,
        dp_size=1,
    )


def _clip(parameters: list[torch.nn.Parameter], limit: float) -> None:
    """megatron-core's own norm and clipping (another order of summation rounds differently)."""
    from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32, get_grad_norm_fp32

    norm = get_grad_norm_fp32([p.grad for p in parameters])
    clip_grad_by_total_norm_fp32(parameters, limit, norm)


def _learning_rate(iteration: int, cfg: Any) -> float:
    """Rate of the update of an iteration (counted from 1): 3 of warm-up, then cosine to 20."""
    import math

    done = iteration - 1
    if done <= 3:
        return 4e-3 * done / 3
    ratio = (done - 3) / (20 - 3)
    return 1e-4 + (4e-3 - 1e-4) * 0.5 * (1 + math.cos(math.pi * ratio))
