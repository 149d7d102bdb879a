"""Log-likelihoods and continuations of one batch, by one process or by several together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.interop.cached_model import CachedModel
from fixedcode_megatron.interop.generation import continue_texts
from fixedcode_megatron.interop.models import LoadedModel

Score = tuple[float, bool]
"""Log-likelihood in nats, and whether greedy decoding would say the same."""


@dataclass(frozen=True)
class Sampling:
    """How texts are continued: see `generation.generate`. A text ends with any of `until`, too."""

    max_new_tokens: int
    until: tuple[str, ...] = ()
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0


class Scorer:
    """What a model does with a batch; the same on every rank that has a share of it."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded

    @torch.no_grad()
    def score(
        self, rows: Sequence[list[int]], endings: Sequence[Sequence[list[int]]]
    ) -> list[list[Score]]:
        """Log-likelihoods of several endings of each row.

        Parameters
        ----------
        rows
            Input ids: a context and an ending, without the last id.
        endings
            For each row, the ids of its endings. One of m ids is predicted by the last m positions
            of the row.

        Raises
        ------
        UserError
            If the model's logits are not numbers.
        """
        model, longest = self.loaded.model, max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        # From the first position that predicts something; what follows a row predicts nothing.
        spans = [
            (len(row) - max(map(len, ends)), row) for row, ends in zip(rows, endings, strict=True)
        ]
        kept = longest - min(start for start, _ in spans)
        logits = model(ids.to(model.device), use_cache=False, logits_to_keep=kept).logits
        scores = []
        for (start, row), ends, found in zip(spans, endings, logits, strict=True):
            begin = start - (longest - kept)
            part = found[begin : begin + len(row) - start, : self.loaded.vocab_size]
            scores.append(_scores(torch.log_softmax(part.float(), dim=-1), ends))
        return scores

    def continued(self, prompts: Sequence[list[int]], how: Sampling) -> list[list[int]]:
        """The new ids of each prompt, with keys and values cached."""
        loaded = self.loaded
        tokenizer = loaded.tokenizer

        def is_complete(new: list[int]) -> bool:
            text = tokenizer.decode(new)
            return any(stop in text for stop in how.until)

        return continue_texts(
            CachedModel(loaded.model, loaded.vocab_size),
            list(prompts),
            max_new_tokens=how.max_new_tokens,
            vocab_size=loaded.vocab_size,
            temperature=how.temperature,
            top_k=how.top_k,
            top_p=how.top_p,
            seed=how.seed,
            eod=loaded.eod,
            max_context=loaded.max_positions,
            is_complete=is_complete if how.until else None,
        )


def _scores(log_probabilities: torch.Tensor, endings: Sequence[list[int]]) -> list[Score]:
    """Scores of endings by log-probabilities [as many as the longest has ids, V]."""
    best, scores = log_probabilities.argmax(dim=-1), []
    for ending in endings:
        ids = torch.tensor(ending, device=best.device)
        chosen = log_probabilities[-len(ending) :].gather(1, ids[:, None])
        value = float(chosen.double().sum())
        if value != value:
            raise UserError("the model's logits are not numbers: did its training diverge?")
        scores.append((value, bool((best[-len(ending) :] == ids).all())))
    return scores


class Team:
    """All ranks that share a model: rank 0 says what to do, and they do it together.

    Without a process group it is one process alone.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._alone = not dist.is_initialized() or dist.get_world_size() == 1
        self._together = True  # whether the others wait for the next order

    def score(self, *args: Any) -> list[list[Score]]:
        """`Scorer.score` on all ranks."""
        return self._do("score", args)

    def continued(self, *args: Any) -> list[list[int]]:
        """`Scorer.continued` on all ranks."""
        return self._do("continued", args)

    def follow(self) -> None:
        """Work on another rank than 0, until rank 0 dismisses the team.

        Raises
        ------
        UserError
            If rank 0 has ended without.
        """
        while True:
            try:
                order = _told(None)
            except RuntimeError as error:  # the connection is closed
                raise UserError("rank 0 has ended; it has said why") from error
            if order is None:
                return
            name, args = order
            getattr(self._scorer, name)(*args)

    def dismiss(self) -> None:
        """Let the other ranks go (on rank 0, at the end)."""
        if not self._alone and self._together:
            _told(None)

    def _do(self, name: str, args: tuple[Any, ...]) -> Any:
        if not self._alone:
            _told((name, args))
        self._together = False
        result = getattr(self._scorer, name)(*args)
        self._together = True
        return result


def _told(order: Any) -> Any:
    """What rank 0 says, on every rank."""
    box = [order]
    dist.broadcast_object_list(box, src=0)
    return box[0]
