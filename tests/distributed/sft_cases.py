"""What the tests of supervised fine-tuning run on a rank."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "sft.sh"


def _start(argv: list[str]) -> tuple[Any, Any]:
    """A trainer with its weights loaded, and its training data."""
    from fixedcode_megatron import pretrain, runtime
    from fixedcode_megatron.config import parse_args
    from fixedcode_megatron.model.gpt import run_vocabulary
    from fixedcode_megatron.training.checkpoint_load import load_checkpoint
    from fixedcode_megatron.training.start import checkpoint_to_load
    from fixedcode_megatron.training.trainer import build_trainer

    cfg = parse_args(argv)
    started = runtime.initialize(cfg)
    tokenizer = pretrain.load_tokenizer(cfg)
    vocabulary = run_vocabulary(cfg, pretrain.vocab_size(cfg, tokenizer))
    trainer = build_trainer(cfg, started, vocabulary)
    source = checkpoint_to_load(cfg)
    assert source is not None and source.weights_only
    load_checkpoint(
        trainer, source.path, weights_only=True, tokenizer_fingerprint=tokenizer.fingerprint
    )
    return trainer, pretrain.build_feeds(cfg, tokenizer, vocabulary.size).train


def example_script(argv: list[str], folder: str) -> int:
    """examples/sft.sh with these flags, in a folder; returns its exit status."""
    os.chdir(folder)
    sys.argv = ["sft.sh", *argv]
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    raise AssertionError("the script did not exit")


def with_files_of_its_own(argv: list[str], folder: str) -> int:
    """The entry point on training files that differ between ranks."""
    from fixedcode_megatron.pretrain import main

    return main([*argv, "--train-data-path", f"{folder}/{os.environ['RANK']}.jsonl"])


def gradients(argv: list[str]) -> dict[str, tuple[float, dict[str, torch.Tensor]]]:
    """Loss and main gradients of a packed micro-batch.

    As the data has it; with other ids for labels at the positions of `prompts`; with another id
    for the label of one of the `answers`' tokens.
    """
    from fixedcode_megatron.training.step import run_microbatches

    trainer, feed = _start(argv)
    [batches] = feed.iterators(0)
    batch = next(batches)
    labels, counts = batch["labels"], batch["loss_mask"] > 0
    assert counts.any() and not counts.all()
    random = torch.randint(0, 256, counts.shape, generator=torch.Generator().manual_seed(1))
    one_changed = labels.clone()
    row, place = counts.nonzero()[0].tolist()
    one_changed[row, place] += 1
    cases = {"data": labels, "prompts": torch.where(counts, labels, random), "answers": one_changed}
    [model] = trainer.models
    found = {}
    for name, targets in cases.items():
        model.zero_grad_buffer()
        own = iter([batch | {"labels": targets}])
        loss = run_microbatches(trainer, [own], num_microbatches=1)
        assert loss is not None
        named = model.module.named_parameters()
        found[name] = float(loss[0] / loss[1]), {n: p.main_grad.clone() for n, p in named}
    return found


def head_input_gradients(argv: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the summed loss by what enters the head [b, s, h], and the loss mask [b, s]."""
    trainer, feed = _start(argv)
    [batches] = feed.iterators(0)
    batch = next(batches)
    model = trainer.models[0].module
    kept: list[torch.Tensor] = []

    def keep(_module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        inputs[0].retain_grad()
        kept.append(inputs[0])

    model.output_layer.register_forward_pre_hook(keep)
    (_token_losses(model, batch) * batch["loss_mask"]).sum().backward()
    assert kept[0].grad is not None
    return kept[0].grad.transpose(0, 1), batch["loss_mask"]


def packed_and_alone(argv: list[str]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Token losses of each conversation: within its packed sample, and as a batch of its own."""
    trainer, feed = _start(argv)
    model, dataset, pairs = trainer.models[0].module.eval(), feed._dataset, []
    with torch.no_grad():
        for index in range(4):
            sample = {name: value[None] for name, value in dataset[index].items()}
            losses = _token_losses(model, sample)[0]
            begin = 0
            for number in dataset._pack(index):
                ids = torch.from_numpy(dataset._documents[number].tokens).long()
                end = begin + len(ids) - 1
                alone = model(
                    ids[None, :-1],
                    torch.arange(len(ids) - 1)[None],
                    None,
                    labels=ids[None, 1:],
                )
                pairs.append((losses[begin:end], alone[0]))
                begin = end
    return pairs


def _token_losses(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of each token [b, s]; the model must not fuse head and loss."""
    return model(
        batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"]
    )
