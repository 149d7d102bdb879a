"""How many directions a trained model's hidden states use, from the input to the last layer.

Proposition 3 of paper A bounds the span of a fixed code's vectors by K = ceil(log2 V) dimensions:
what enters layer 1 has a rank of at most K, and each layer may raise it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fixedcode_megatron.data.files import write_text_whole
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.jobs.held_out import held_out_batches, validation_set
from fixedcode_megatron.jobs.job import Job

logger = logging.getLogger(__name__)

ACTIVATIONS_FILE = "activations.json"
_TOKENS_PER_WIDTH = 4
_MOST_TOKENS = 16384


@dataclass(frozen=True)
class Spectrum:
    """Hidden states of N tokens at one place, as an [N, h] matrix.

    Attributes
    ----------
    place
        `input`, or `layer 1` and so on: what leaves it.
    rank
        Singular values above the largest times max(N, h) times FP32's epsilon.
    effective_rank
        exp of the entropy of the singular values, scaled to a sum of 1 (Roy and Vetterli, 2007).
    rms
        Root of the mean square of all elements.
    """

    place: str
    rank: int
    effective_rank: float
    rms: float


def spectrum(place: str, states: torch.Tensor) -> Spectrum:
    """Measure hidden states [N, h]."""
    matrix = states.double()
    values = torch.linalg.svdvals(matrix)
    largest = float(values[0])
    limit = largest * max(matrix.shape) * torch.finfo(torch.float32).eps
    shares = values[values > 0] / values.sum().clamp(min=1e-300)
    entropy = float(-(shares * shares.log()).sum())
    return Spectrum(
        place=place,
        rank=int((values > limit).sum()) if largest else 0,
        effective_rank=float(torch.tensor(entropy).exp()) if largest else 0.0,
        rms=float(matrix.square().mean().sqrt()),
    )


def final_spectra(job: Job, device: str) -> list[Spectrum] | str:
    """Spectra of a job's last checkpoint on its held-out samples, or why there are none.

    They are kept in the run's folder, and read from there the next time.
    """
    if job.cfg.data.sft:
        return "runs of --sft have no plain held-out text"
    path = job.folder / ACTIVATIONS_FILE
    if kept := _read(path, job.train_iters):
        return kept
    try:
        found = _measure(job, device)
    except ImportError as error:
        return f"{error.name or error} is not installed (the extra `eval` brings it)"
    except UserError as error:
        return str(error)
    content = {"iteration": job.train_iters, "spectra": [asdict(s) for s in found]}
    write_text_whole(path, json.dumps(content, indent=1) + "\n")
    return found


def _read(path: Path, iteration: int) -> list[Spectrum] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["iteration"] == iteration:
            return [Spectrum(**values) for values in content["spectra"]]
    except (ValueError, KeyError, TypeError):
        logger.warning("%s is damaged: measured anew", path)
    return None


@torch.no_grad()
def _measure(job: Job, device: str) -> list[Spectrum]:
    from fixedcode_megatron.interop.models import load_model

    logger.info("%s: measuring the hidden states of its last checkpoint", job.name)
    loaded = load_model(job.checkpoints, step=job.train_iters, device=device)
    model = loaded.model.float()
    tokens = _tokens(job, loaded.tokenizer, _TOKENS_PER_WIDTH * model.config.hidden_size)
    layers = model.layers if hasattr(model, "layers") else model.model.layers
    places = {"input": model.get_input_embeddings()}
    places |= {f"layer {number}": layer for number, layer in enumerate(layers, start=1)}
    seen: dict[str, list[torch.Tensor]] = {place: [] for place in places}

    def keep(place: str) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            seen[place].append(states.flatten(0, 1).cpu())

        return hook

    handles = [module.register_forward_hook(keep(place)) for place, module in places.items()]
    for batch in tokens:
        model(batch.to(device))
    for handle in handles:
        handle.remove()
    return [spectrum(place, torch.cat(states)) for place, states in seen.items()]


def _tokens(job: Job, tokenizer: Any, wanted: int) -> Iterator[torch.Tensor]:
    """Held-out micro-batches [b, s], up to the wanted number of tokens."""
    count = 0
    for batch in held_out_batches(job.cfg, validation_set(job.cfg, tokenizer)):
        yield batch["tokens"]
        count += batch["tokens"].numel()
        if count >= min(wanted, _MOST_TOKENS):
            return
