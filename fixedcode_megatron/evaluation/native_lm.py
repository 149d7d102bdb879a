"""A checkpoint of ours as a language model of the lm-evaluation-harness."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.evaluation.scoring import Sampling, Score, Team
from fixedcode_megatron.interop.models import LoadedModel

logger = logging.getLogger(__name__)

_SAMPLING = {"do_sample", "temperature", "top_k", "top_p", "until", "max_gen_toks"}


class NativeLM(TemplateLM):
    """Scores and continues texts with a model that a checkpoint was loaded into.

    Texts are encoded as in training: no token is added, and the spelling of a special token is
    text. A text without a context follows the id that ends a document.

    Parameters
    ----------
    loaded
        The model, its tokenizer and what it says of itself.
    team
        The ranks that compute it.
    batch_size
        Rows of a batch.
    """

    def __init__(self, loaded: LoadedModel, team: Team, batch_size: int) -> None:
        super().__init__()
        self._loaded, self._team, self._batch_size = loaded, team, batch_size
        assert loaded.max_positions is not None
        self.max_length = loaded.max_positions

    @property
    def eot_token_id(self) -> int:
        eod = self._loaded.eod
        if not isinstance(eod, int):
            raise UserError(
                "the model's tokenizer has no end-of-document token, which texts without a context "
                "follow: name its eos_token in a tokenizer_config.json beside it"
            )
        return eod

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Ids of a text.

        Raises
        ------
        UserError
            If one is outside of the model's vocabulary.
        """
        [ids] = self._loaded.tokenizer.encode_batch([string])
        size = self._loaded.vocab_size
        wrong = next((i for i in ids if i >= size), None)
        if wrong is not None:
            raise UserError(
                f"the tokenizer gives id {wrong}, the model knows 0..{size - 1}: give the "
                "--tokenizer-model it was trained with"
            )
        return ids

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, each window of which has as much context as fits."""
        texts = [request.args[0] for request in requests]
        windows, owners = [], []
        for owner, text in enumerate(texts):
            pairs = get_rolling_token_windows(
                self.tok_encode(text), self.prefix_token_id, self.max_length, context_len=1
            )
            for context, ending in map(make_disjoint_window, pairs):
                windows.append(((text, ""), context, ending))
                owners.append(owner)
        totals = [0.0] * len(texts)
        scores = self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm)
        for owner, (value, _) in zip(owners, scores, strict=True):
            totals[owner] += value
        return totals

    def _loglikelihood_tokens(
        self, requests: Sequence[Any], disable_tqdm: bool = False, **_: Any
    ) -> list[Score]:
        """Longest first, so that the rows of a batch have about the same length and memory runs out
        at once or never. Endings with the same input share a row."""
        rows: dict[tuple[int, ...], list[int]] = {}
        cut = 0
        for number, (_, context, ending) in enumerate(requests):
            ids = context + ending
            self._check_ending(ending)
            cut += len(ids) > self.max_length + 1
            rows.setdefault(tuple(ids[-self.max_length - 1 : -1]), []).append(number)
        if cut:
            logger.warning(
                "%d of %d texts are longer than the model's %d positions: their beginnings are "
                "left out",
                cut,
                len(requests),
                self.max_length,
            )
        scores: list[Any] = [None] * len(requests)
        order = sorted(rows, key=lambda row: (-len(row), row))
        for batch in self._batches(order, "log-likelihoods", disable_tqdm):
            endings = [[requests[number][2] for number in rows[row]] for row in batch]
            found = self._team.score([list(row) for row in batch], endings)
            for row, values in zip(batch, found, strict=True):
                for number, value in zip(rows[row], values, strict=True):
                    scores[number] = value
        return scores

    def _check_ending(self, ending: list[int]) -> None:
        if not 0 < len(ending) <= self.max_length:
            raise UserError(
                f"an answer of {len(ending)} tokens, where 1 to {self.max_length} (the model's "
                "positions) can be scored: leave that task out"
            )

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Continue texts, greedily or as a task says, up to any of its `until`."""
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(number)
        texts = [""] * len(requests)
        for numbers in groups.values():
            how = _sampling(requests[numbers[0]].args[1])
            prompts = {n: self._prompt(requests[n].args[0], how) for n in numbers}
            order = sorted(numbers, key=lambda n: -len(prompts[n]))
            done = 0
            for batch in self._batches(order, "continuations", disable_tqdm):
                # Rows draw from streams seed, seed + 1, ...: no two texts have the same.
                seeded = replace(how, seed=done)
                found = self._team.continued([prompts[n] for n in batch], seeded)
                done += len(batch)
                for n, new in zip(batch, found, strict=True):
                    decoded = self._loaded.tokenizer.decode(new)
                    texts[n] = postprocess_generated_text(decoded, list(how.until), None)
        return texts

    def _prompt(self, text: str, how: Sampling) -> list[int]:
        ids = self.tok_encode(text) or [self.prefix_token_id]
        return ids[-max(1, self.max_length - how.max_new_tokens) :]

    def _batches(self, items: list[Any], what: str, quiet: bool) -> Iterator[list[Any]]:
        starts: Iterable[int] = range(0, len(items), self._batch_size)
        for start in tqdm(starts, desc=what, disable=quiet, unit="batch"):
            yield items[start : start + self._batch_size]


def _sampling(options: dict[str, Any]) -> Sampling:
    found: dict[str, Any] = dict(normalize_gen_kwargs(options))
    if unknown := sorted(set(found) - _SAMPLING):
        raise UserError(
            f"the task asks for {', '.join(unknown)} in its generation_kwargs; of these there are "
            f"{', '.join(sorted(_SAMPLING))}"
        )
    return Sampling(
        max_new_tokens=found["max_gen_toks"],
        until=tuple(stop for stop in found["until"] if stop),
        temperature=found.get("temperature", 1.0) if found["do_sample"] else 0.0,
        top_k=found.get("top_k"),
        top_p=found.get("top_p"),
    )
