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


def one_update(argv: list[str]) -> tuple[Any, dict[str, torch.Tensor], float]:
    """Do an iteration; returns the trainer, the weights before it, and the norm it reported."""
    from fixedcode_megatron.training.step import train_step

    trainer = _trainer(argv)
    named = trainer.models[0].module.named_parameters()
    before = {name: weight.detach().clone() for name, weight in named}
    trainer.set_batch_size()
    result = train_step(trainer, [random_batches(trainer)])
    assert result.updated
    return trainer, before, result.grad_norm or 0.0


def weights_of(trainer: Any) -> dict[str, torch.Tensor]:
    """This rank's weights by name."""
    named = trainer.models[0].module.named_parameters()
    return {name: weight.detach() for name, weight in named}


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


def first_projection(argv: list[str], *, hand_over: bool = False) -> dict[str, torch.Tensor]:
    """Output and gradients of layer 1's norm and QKV in FP64, for random ids and output gradients.

    The gradient with respect to the output is the same global tensor at any tensor-parallel size.
    """
    from megatron.core import parallel_state

    from fixedcode_megatron import runtime
    from fixedcode_megatron.config import parse_args
    from fixedcode_megatron.model.folding import VALUES_ATTRIBUTE
    from fixedcode_megatron.model.gpt import build_model, run_vocabulary

    cfg = parse_args(argv)
    runtime.initialize(cfg)
    overrides = dict(params_dtype=torch.float64, pipeline_dtype=torch.float64)
    overrides["gradient_accumulation_fusion"] = False  # nothing here has main gradients
    vocabulary = run_vocabulary(cfg, cfg.model.vocab_size)
    [model], config, code = build_model(cfg, vocabulary, **overrides)
    linear = model.decoder.layers[0].self_attention.linear_qkv
    generator = torch.Generator().manual_seed(5)
    for name, parameter in linear.named_parameters():
        if "layer_norm" in name:  # neither ones nor zeros
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data.add_(noise, alpha=0.3)
    length, width = cfg.model.seq_length, linear.weight.shape[0]
    ids = torch.randint(0, code.vocab_size, (length, 3), generator=generator)
    size = parallel_state.get_tensor_model_parallel_world_size()
    rank = parallel_state.get_tensor_model_parallel_rank()
    upstream = torch.randn(length, 3, width * size, generator=generator, dtype=torch.float64)
    x = code.embed(ids, config.hidden_size, torch.float64)
    if config.sequence_parallel:
        x = x.chunk(size)[rank].contiguous()
    if hand_over:
        setattr(x, VALUES_ATTRIBUTE, code.values(ids).double())
    output, _ = linear(x)
    output.backward(upstream[..., rank * width : (rank + 1) * width])
    found = {name: parameter.grad for name, parameter in linear.named_parameters()}
    return found | {"output": output.detach()}


def collectives_of_a_step(argv: list[str]) -> dict[str, int]:
    """How often one forward and backward pass calls each tensor-parallel collective."""
    import torch.distributed as dist

    from fixedcode_megatron.training.step import run_microbatches

    trainer = _trainer(argv)
    counts: dict[str, int] = {}

    def counted(name: str) -> Any:
        original = getattr(dist, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return original(*args, **kwargs)

        return call

    for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"):
        setattr(dist, name, counted(name))
        setattr(torch.distributed, name, getattr(dist, name))
    for name in ("dist_all_gather_func", "dist_reduce_scatter_func"):
        for module in _tensor_parallel_modules():
            if hasattr(module, name):
                target = "all_gather_into_tensor" if "gather" in name else "reduce_scatter_tensor"
                setattr(module, name, getattr(dist, target))
    run_microbatches(trainer, [random_batches(trainer)], num_microbatches=1)
    return counts


def _tensor_parallel_modules() -> list[Any]:
    from megatron.core.tensor_parallel import layers, mappings

    return [layers, mappings]


def masked_step(
    argv: list[str], only: int | None = None
) -> tuple[list[float], list[int], torch.Tensor, float]:
    """One backward pass over two micro-batches of 32 and 3 counted tokens (or only one of them).

    Returns the loss sums of the micro-batches, their tokens, the gradient of the head and the
    reported sum of losses.
    """
    from fixedcode_megatron.training import step

    trainer = _trainer(argv)
    source = random_batches(trainer)
    batches = [next(source), next(source)]
    batches[1]["loss_mask"][:, 3:] = 0.0
    batches = batches if only is None else [batches[only]]
    model, seen = trainer.models[0], []
    with torch.no_grad():
        for batch in batches:
            logits = model(batch["tokens"], batch["position_ids"], None)  # [b, s, V]
            losses = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), batch["labels"].flatten(), reduction="none"
            )
            seen.append(float(losses @ batch["loss_mask"].flatten()))
    model.zero_grad_buffer()
    report = step.run_microbatches(trainer, [iter(batches)], num_microbatches=len(batches))
    assert report is not None
    gradient = model.module.output_layer.weight.main_grad.clone()
    tokens = [int(batch["loss_mask"].sum()) for batch in batches]
    return seen, tokens, gradient, float(report[0])


def signalled(argv: list[str], numbers: list[int], rank: int) -> int:
    """`run_main` on ranks of which one is sent signals, in one go, in its third iteration."""
    import os

    from fixedcode_megatron.training import loop

    original, calls = loop.train_step, 0

    def step(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3 and int(os.environ["RANK"]) == rank:
            for number in numbers:
                os.kill(os.getpid(), number)
        return original(*args)

    loop.train_step = step
    return run_main(argv)


def idle_runtime() -> Any:
    """A runtime of one process that has just started."""
    from fixedcode_megatron.runtime import Runtime

    return Runtime(device=torch.device("cpu"), backend="gloo", rank=0, world_size=1, local_rank=0)


def killed_while_saving(argv: list[str], iteration: int, rank: int) -> int:
    """`run_main` on ranks of which one is killed when it has begun to save an iteration."""
    import functools
    import os
    import signal

    from megatron.core import dist_checkpointing

    original = dist_checkpointing.save

    @functools.wraps(original)  # callers look at its signature
    def save(state: Any, path: str, **options: Any) -> Any:
        if int(os.environ["RANK"]) == rank and f"{iteration:07d}" in path:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(state, path, **options)

    dist_checkpointing.save = save
    return run_main(argv)


def with_small_files(argv: list[str]) -> int:
    """`run_main` where no file may grow beyond 100 kB, as if the disk were full."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    return run_main(argv)
