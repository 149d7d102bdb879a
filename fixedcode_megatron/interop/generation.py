"""Sampling text from anything that turns token ids into logits.

The model is a callable, so that the same code serves a training process, a checkpoint and a test.
`generate` calls it on whole contexts, without a cache: right for samples of a few hundred tokens;
`continue_texts` leaves the next logits to a callable that may keep one (see `cached_model`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from numbers import Integral
from typing import Any

import torch

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.splitmix import mix64

LogitsFn = Callable[[torch.Tensor], torch.Tensor]
Prompts = torch.Tensor | Sequence[int] | Sequence[Sequence[int]]
NextLogits = Callable[[list[int], list[list[int]]], torch.Tensor]
OnToken = Callable[[int, int], None]
IsComplete = Callable[[list[int]], bool]


@torch.no_grad()
def generate(
    logits_fn: LogitsFn,
    prompt_ids: Prompts,
    *,
    max_new_tokens: int,
    vocab_size: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    eod: int | Collection[int] | None = None,
    max_context: int | None = None,
) -> list[list[int]]:
    """Continue each prompt until `eod` or for `max_new_tokens` tokens.

    Every prompt has a random stream of its own that depends on `seed` and on its place among the
    prompts alone; the global generators are neither read nor advanced.

    Parameters
    ----------
    logits_fn : callable
        ids int64 [b, s] -> logits [b, s, >= vocab_size], causal: contexts of unequal length are
        padded on the right with id 0. Rows that are finished are left out of later calls.
    prompt_ids : int tensor [s] or [b, s], or a list of ids, or a list of such lists
        Ids go to `logits_fn` on the tensor's device (a list's: the CPU).
    max_new_tokens : int
    vocab_size : int
        Ids from here on, such as those that pad the head, are never produced.
    temperature : float
        Divides the logits; 0 takes the most likely token.
    top_k : int, optional
        Keep only the k most likely tokens; None or 0 keeps all.
    top_p : float, optional
        Then keep the most likely tokens whose probabilities first reach p in sum, at least one;
        None or 1 keeps all.
    seed : int
    eod : int or collection of int, optional
        The id, or each of the ids, that ends a text; it is not part of the result.
    max_context : int, optional
        The model sees only this many of the latest tokens.

    Returns
    -------
    list of lists of int
        The new ids of each prompt, without the prompt.

    Raises
    ------
    UserError
        If an option or a prompt is out of range, or the logits are not numbers.
    ValueError
        If the logits have the wrong shape.
    """
    device = prompt_ids.device if isinstance(prompt_ids, torch.Tensor) else torch.device("cpu")

    def next_logits(_: list[int], contexts: list[list[int]]) -> torch.Tensor:
        return _last_logits(logits_fn, contexts, vocab_size, device)

    return continue_texts(
        next_logits,
        _prompt_lists(prompt_ids),
        max_new_tokens=max_new_tokens,
        vocab_size=vocab_size,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        eod=eod,
        max_context=max_context,
    )


@torch.no_grad()
def continue_texts(
    next_logits: NextLogits,
    prompts: list[list[int]],
    *,
    max_new_tokens: int,
    vocab_size: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    eod: int | Collection[int] | None = None,
    max_context: int | None = None,
    on_token: OnToken | None = None,
    is_complete: IsComplete | None = None,
) -> list[list[int]]:
    """As `generate`, of prompts that are lists of ids.

    Parameters
    ----------
    next_logits : callable
        (numbers of the prompts that are not finished, their contexts) -> logits of the next token,
        float64 [b, vocab_size] on the CPU. From one call to the next each context grows by a token
        or, at `max_context`, moves by one.
    on_token : callable, optional
        Told number of the prompt and id of each new token, as soon as it is drawn.
    is_complete : callable, optional
        Asked with the new ids of a prompt after each of them; True ends its text.
    """
    _check_options(max_new_tokens, vocab_size, temperature, top_k, top_p, max_context)
    _check_prompts(prompts, vocab_size)
    texts, ends = [list(prompt) for prompt in prompts], _ends(eod)
    lengths = [len(text) for text in texts]
    generators = [torch.Generator().manual_seed(mix64(seed + row)) for row in range(len(texts))]
    active = list(range(len(texts)))
    for _ in range(max_new_tokens):
        if not active:
            break
        contexts = [texts[row][-max_context:] if max_context else texts[row] for row in active]
        last = next_logits(list(active), contexts)
        for row, logits in zip(list(active), last, strict=True):
            token = _choose(logits, temperature, top_k, top_p, generators[row])
            if token in ends:
                active.remove(row)
            else:
                texts[row].append(token)
                if on_token is not None:
                    on_token(row, token)
                if is_complete is not None and is_complete(texts[row][lengths[row] :]):
                    active.remove(row)
    return [text[length:] for text, length in zip(texts, lengths, strict=True)]


def _last_logits(
    logits_fn: LogitsFn, contexts: list[list[int]], vocab_size: int, device: torch.device
) -> torch.Tensor:
    """Logits after the last token of each context: float64 [b, vocab_size] on the CPU."""
    longest = max(map(len, contexts))
    padded = [context + [0] * (longest - len(context)) for context in contexts]
    ids = torch.tensor(padded, dtype=torch.int64, device=device)
    logits = logits_fn(ids)
    if logits.ndim != 3 or logits.shape[:2] != ids.shape or logits.shape[2] < vocab_size:
        raise ValueError(
            f"logits of ids {tuple(ids.shape)} have shape {tuple(logits.shape)}, not "
            f"{tuple(ids.shape)} with {vocab_size} or more entries"
        )
    ends = torch.tensor([len(context) - 1 for context in contexts], device=logits.device)
    rows = torch.arange(len(contexts), device=logits.device)
    return checked(logits[rows, ends, :vocab_size])


def checked(logits: torch.Tensor) -> torch.Tensor:
    """Logits [b, vocab_size] in float64 on the CPU.

    Raises
    ------
    UserError
        If they are not numbers.
    """
    last = logits.to("cpu", torch.float64)
    if last.isnan().any() or not last.amax(dim=-1).isfinite().all():
        raise UserError("the logits are not numbers: did the model's weights load or diverge?")
    return last


def _choose(
    logits: torch.Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator,
) -> int:
    """Draw one token from logits [vocab_size]."""
    if temperature == 0:
        return int(logits.argmax())
    logits = (logits - logits.max()) / temperature
    order = logits.argsort(descending=True, stable=True)[: top_k or None]
    probabilities = torch.softmax(logits[order], dim=-1)
    if top_p is not None and top_p < 1:
        reached_before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities * (reached_before < top_p)
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])


def _ends(eod: int | Collection[int] | None) -> Collection[int]:
    if eod is None:
        return ()
    return eod if isinstance(eod, Collection) else (eod,)


def _prompt_lists(prompt_ids: Prompts) -> list[list[int]]:
    found: list[Any] = (
        prompt_ids.tolist() if isinstance(prompt_ids, torch.Tensor) else list(prompt_ids)
    )
    rows = [found] if not found or isinstance(found[0], Integral) else found
    return [[int(token) for token in row] for row in rows]


def _check_prompts(texts: list[list[int]], vocab_size: int) -> None:
    for number, text in enumerate(texts):
        if not text:
            raise UserError(f"prompt {number} is empty: start it with one token, such as the EOD")
        wrong = next((token for token in text if not 0 <= token < vocab_size), None)
        if wrong is not None:
            raise UserError(f"prompt {number} has id {wrong}, outside 0..{vocab_size - 1}")


def _check_options(
    max_new_tokens: int,
    vocab_size: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    max_context: int | None,
) -> None:
    limits = [
        ("--max-new-tokens", max_new_tokens, max_new_tokens >= 0, "0 or more"),
        ("vocab_size", vocab_size, vocab_size >= 1, "1 or more"),
        ("--temperature", temperature, 0 <= temperature < float("inf"), "0 or more"),
        ("--top-k", top_k, top_k is None or top_k >= 0, "1 or more, or 0 for all tokens"),
        ("--top-p", top_p, top_p is None or 0 < top_p <= 1, "above 0 and at most 1"),
        ("max_context", max_context, max_context is None or max_context >= 1, "1 or more"),
    ]
    problems = [f"{name} {value}: choose {hint}" for name, value, fine, hint in limits if not fine]
    if problems:
        raise UserError("; ".join(problems))
