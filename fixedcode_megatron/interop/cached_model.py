"""Next-token logits of a transformers model that keeps keys and values from call to call."""

from __future__ import annotations

from typing import Any

import torch

from fixedcode_megatron.interop.generation import checked
from fixedcode_megatron.interop.modeling_fixedcode import CACHE_NAME


class CachedModel:
    """A `NextLogits` for `continue_texts`.

    Prompts of unequal length are padded on the left; finished ones leave the cache. A context that
    has moved (at `max_context`) is computed anew: what its tokens had seen has changed.

    Parameters
    ----------
    model
        Any causal language model of transformers.
    vocab_size
        Logits from here on are cut off.
    """

    def __init__(self, model: Any, vocab_size: int) -> None:
        self._model, self._vocab_size = model, vocab_size
        self._rows: list[int] = []
        self._lengths: list[int] = []
        self._cache: Any = None
        self._mask = torch.empty(0)

    def __call__(self, rows: list[int], contexts: list[list[int]]) -> torch.Tensor:
        lengths = [len(context) for context in contexts]
        if self._cache is None or not self._keep(rows, lengths):
            logits = self._start(contexts)
        else:
            last = torch.tensor([[context[-1]] for context in contexts])
            positions = torch.tensor(lengths)[:, None] - 1
            self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
            logits = self._run(last, positions, self._cache)
        self._rows, self._lengths = list(rows), lengths
        return checked(logits)

    def _keep(self, rows: list[int], lengths: list[int]) -> bool:
        """Leave out the rows that are finished; False if the others did not grow by one token."""
        places = [self._rows.index(row) for row in rows if row in self._rows]
        grown = [self._lengths[place] + 1 for place in places]
        if len(places) != len(rows) or grown != lengths:
            return False
        if len(rows) != len(self._rows):
            kept = torch.tensor(places)
            self._cache.batch_select_indices(kept.to(self._model.device))
            self._mask = self._mask[kept]
        return True

    def _start(self, contexts: list[list[int]]) -> torch.Tensor:
        longest = max(map(len, contexts))
        pads = [longest - len(context) for context in contexts]
        ids = torch.tensor([[0] * n + context for n, context in zip(pads, contexts, strict=True)])
        places = torch.arange(longest)[None] - torch.tensor(pads)[:, None]
        self._mask = (places >= 0).long()
        return self._run(ids, places.clamp(min=0), None)

    @torch.inference_mode()
    def _run(self, ids: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        """Logits after the last token, [b, vocab_size]."""
        device = self._model.device
        output = self._model(
            ids.to(device),
            attention_mask=self._mask.to(device),
            position_ids=positions.to(device),
            use_cache=True,
            logits_to_keep=1,
            **{CACHE_NAME: cache},
        )
        self._cache = output[CACHE_NAME]
        return output.logits[:, -1, : self._vocab_size]
