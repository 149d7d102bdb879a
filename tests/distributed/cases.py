"""What the distributed tests run on each rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def run_main(argv: list[str]) -> int:
    """The entry point, as a user calls it."""
    from fixedcode_megatron.pretrain import main

    return main(argv)


def _trainer(argv: list[str]) -> Any:
    from fixedcode_megatron import pretrain, runtime
    from fixedcode_megatron.config import parse_args
    from fixedcode_megatron.model.gpt import run_vocabulary
    from fixedcode_megatron.training.trainer import build_trainer

    cfg = parse_args(argv)
    started = runtime.initialize(cfg)
    tokenizer = pretrain.load_tokenizer(cfg)
    return build_trainer(cfg, started, run_vocabulary(cfg, tokenizer.vocab_size))


def random_batches(trainer: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Endless micro-batches of random ids, equal on every rank."""
    cfg, generator = trainer.cfg, torch.Generator().manual_seed(11)
    batch, length = cfg.training.micro_batch_size, cfg.model.seq_length
    while True:
        ids = torch.randint(0, trainer.vocabulary.size, (batch, length + 1), generator=generator)
        yield dict(
            tokens=ids[:, :-1].contiguous(),
            labels=ids[:, 1:].contiguous(),
            loss_mask=torch.ones(batch, length),
            position_ids=torch.arange(length).expand(batch, length),
        )


def gradients(argv: list[str], num_microbatches: int = 2) -> dict[str, torch.Tensor]:
    """Main gradients of this rank's parameters after one backward pass, by name."""
    from fixedcode_megatron.training.step import (
        every_parameter_must_receive_a_gradient,
        run_microbatches,
    )

    trainer = _trainer(argv)
    with every_parameter_must_receive_a_gradient(trainer):
        run_microbatches(trainer, [random_batches(trainer)], num_microbatches=num_microbatches)
    named = trainer.models[0].module.named_parameters()
    return {name: parameter.main_grad.clone() for name, parameter in named}


def embedding_output(argv: list[str], ids: list[list[int]]) -> torch.Tensor:
    """What the input interface makes of ids [b, s] on this rank."""
    trainer = _trainer(argv)
    return trainer.models[0].module.embedding(torch.tensor(ids), None).detach().clone()


def state_summary(argv: list[str]) -> dict[str, Any]:
    """Parameter names, sharded keys, and sizes of all tensors that the model module holds."""
    from megatron.core import parallel_state

    trainer = _trainer(argv)
    module = trainer.models[0].module
    metadata = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    return {
        "parameters": {name: tuple(p.shape) for name, p in module.named_parameters()},
        "buffers": {name: tuple(b.shape) for name, b in module.named_buffers()},
        "keys": checkpoint_keys(module.sharded_state_dict(metadata=metadata)),
    }


def checkpoint_keys(sharded_state: dict[str, Any]) -> list[str]:
    """Keys under which the tensors of a sharded state lie in a checkpoint."""
    keys = {getattr(value, "key", name) for name, value in sharded_state.items()}
    return sorted(key for key in keys if "_extra_state" not in key)
