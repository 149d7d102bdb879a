"""The figures of one trained model, measured on its last checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fixedcode_megatron import pretrain
from fixedcode_megatron.baselines import Baselines, prediction_losses
from fixedcode_megatron.data.indexed import IndexedDatasetReader
from fixedcode_megatron.data.plans import plan_splits
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.interop.generation import generate
from fixedcode_megatron.jobs.held_out import held_out_batches, validation_set
from fixedcode_megatron.jobs.job import Job
from fixedcode_megatron.model.gpt import run_vocabulary
from fixedcode_megatron.quickstart.ablation import losses_without_each_bit
from fixedcode_megatron.training.checkpoint_files import checkpoint_path
from fixedcode_megatron.training.checkpoint_load import load_checkpoint
from fixedcode_megatron.training.data_feed import DataFeed
from fixedcode_megatron.training.evaluation import evaluate
from fixedcode_megatron.training.metrics_file import History
from fixedcode_megatron.training.trainer import Trainer, build_trainer

if TYPE_CHECKING:
    from fixedcode_megatron.data.tokenizers import Tokenizer
    from fixedcode_megatron.runtime import Runtime

PROMPT = "The function returns"
SAMPLE_TOKENS = 100
TEMPERATURE = 0.8
SAMPLE_SEED = 1


@dataclass(kw_only=True)
class Figures:
    """What the report says of one model.

    Attributes
    ----------
    validation_loss
        Nats per token of the last checkpoint, measured anew.
    bit_losses
        The same with each code bit zeroed, lowest bit first; None without code bits.
    optimizer_bytes
        Bytes of the optimizer's state tensors.
    tokens_per_second
        Median over the training log.
    data_checksum
        Sum over all training samples.
    """

    interface: str
    input_parameters: int
    trainable_parameters: int
    optimizer_bytes: int
    validation_loss: float
    bit_losses: list[float] | None
    tokens_per_second: float
    train_tokens: int
    data_checksum: int
    sample: str


def analyse(job: Job, history: History, runtime: Runtime) -> Figures:
    """Load the last checkpoint of a job and measure it."""
    tokenizer = pretrain.load_tokenizer(job.cfg)
    vocabulary = run_vocabulary(job.cfg, pretrain.vocab_size(job.cfg, tokenizer))
    trainer = build_trainer(job.cfg, runtime, vocabulary)
    path = checkpoint_path(job.checkpoints, job.train_iters)
    load_checkpoint(trainer, path, tokenizer_fingerprint=tokenizer.fingerprint)
    feed = DataFeed(validation_set(job.cfg, tokenizer), job.cfg)

    def loss() -> float:
        value = evaluate(trainer, feed, job.cfg.training.eval_iters)
        assert value is not None
        return value

    model = trainer.models[0].module
    validation_loss = loss()
    _must_agree(validation_loss, history.validation[-1]["lm loss"], job)
    code = trainer.code
    return Figures(
        interface=job.name,
        input_parameters=sum(p.numel() for p in model.embedding.parameters()),
        trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        optimizer_bytes=optimizer_bytes(trainer.optimizer),
        validation_loss=validation_loss,
        bit_losses=None if code is None else losses_without_each_bit(model.embedding, code, loss),
        tokens_per_second=history.tokens_per_second,
        train_tokens=history.train[-1]["consumed tokens"],
        data_checksum=history.data_checksum,
        sample=sample_text(trainer, tokenizer),
    )


def _must_agree(measured: float, logged: float, job: Job) -> None:
    tolerance = 0.02 if job.cfg.transformer.bf16 or job.cfg.transformer.fp16 else 1e-3
    if not abs(measured - logged) <= tolerance:
        raise UserError(
            f"{job.checkpoints}: the last checkpoint gives a validation loss of {measured:.5f}, "
            f"its training reported {logged:.5f}; delete {job.folder} and train it again"
        )


def optimizer_bytes(optimizer: Any) -> int:
    """Bytes of every state tensor that has the shape of weights (scalar counters left out)."""
    total = 0
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        for state in part.optimizer.state.values():
            tensors = [t for t in state.values() if isinstance(t, torch.Tensor) and t.dim()]
            total += sum(t.numel() * t.element_size() for t in tensors)
    return total


def sample_text(trainer: Trainer, tokenizer: Tokenizer) -> str:
    """A continuation of `PROMPT`, the prompt left out."""
    model = trainer.models[0].eval()

    def logits(ids: torch.Tensor) -> torch.Tensor:
        return model(ids, torch.arange(ids.shape[1], device=ids.device).expand_as(ids), None)

    (prompt,) = tokenizer.encode_batch([PROMPT])
    (new,) = generate(
        logits,
        torch.tensor([prompt], device=trainer.runtime.device),
        max_new_tokens=SAMPLE_TOKENS,
        vocab_size=trainer.vocabulary.size,
        temperature=TEMPERATURE,
        seed=SAMPLE_SEED,
        eod=tokenizer.eod_id,
        max_context=trainer.cfg.model.seq_length,
    )
    return tokenizer.decode(new)


def counting_baselines(job: Job) -> tuple[Baselines, int]:
    """Unigram and bigram loss on the very predictions that `evaluate` averages over.

    Counted on every document of the training split, whether the run reached it or not.

    Returns
    -------
    Baselines, int
        The losses, and the number of predictions.
    """
    tokenizer = pretrain.load_tokenizer(job.cfg)
    batches = list(held_out_batches(job.cfg, validation_set(job.cfg, tokenizer)))
    kept = torch.cat([batch["loss_mask"] for batch in batches]) > 0
    contexts, targets = (
        torch.cat([batch[name] for batch in batches])[kept].numpy() for name in ("tokens", "labels")
    )
    size = pretrain.vocab_size(job.cfg, tokenizer)
    return prediction_losses(_training_tokens(job), contexts, targets, size), len(targets)


def _training_tokens(job: Job) -> np.ndarray:
    plan, _, _ = plan_splits(job.cfg.data, (1, 0, 0), job.cfg.model.seq_length)
    assert plan is not None
    pieces = []
    for part in plan.parts:
        reader = IndexedDatasetReader(part.prefix)
        start = int(reader.sequence_pointers[part.first]) // reader.dtype.itemsize
        pieces.append(reader.tokens[start : start + part.tokens])
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
