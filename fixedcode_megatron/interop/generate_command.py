"""`tools/generate.py`: text from a checkpoint or a Hugging Face folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.interop.command import check_device, run

if TYPE_CHECKING:
    from fixedcode_megatron.interop.models import LoadedModel

_DESCRIPTION = """
Continue prompts with a model: a checkpoint of any parallel layout, or a Hugging Face folder. One
prompt is written out as it comes; several are computed together and written one after the other.
Without --prompt, prompts are read from the terminal, one a line.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit status."""
    return run(_parser(), _generate, argv)


def _generate(options: argparse.Namespace) -> None:
    from fixedcode_megatron.interop.models import load_model

    check_device(options.device)
    _refuse_flags_of_sampling(options)
    loaded = load_model(
        Path(options.load),
        step=options.ckpt_step,
        tokenizer_model=options.tokenizer_model,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
    )
    if options.prompt:
        _continue(loaded, options.prompt, options)
        return
    while line := _next_line():
        _continue(loaded, [line], options)


def _refuse_flags_of_sampling(options: argparse.Namespace) -> None:
    names = ("top_k", "top_p", "seed")
    given = [f"--{n.replace('_', '-')}" for n in names if getattr(options, n) is not None]
    if options.temperature == 0 and given:
        raise UserError(
            f"--temperature 0 takes the most likely token: leave out {', '.join(given)}, or choose "
            "a temperature above 0"
        )


def _next_line() -> str | None:
    """The next prompt that is typed or piped in; None at the end."""
    if sys.stdin.isatty():
        print("> ", end="", flush=True)
    for line in sys.stdin:
        if line.strip():
            return line.rstrip("\n")
    return None


def _continue(loaded: LoadedModel, prompts: list[str], options: argparse.Namespace) -> None:
    from fixedcode_megatron.interop.cached_model import CachedModel
    from fixedcode_megatron.interop.generation import continue_texts

    tokenizer = loaded.tokenizer
    ids = tokenizer.encode_batch(prompts)
    stream = _Stream(loaded) if len(prompts) == 1 else None
    results = continue_texts(
        CachedModel(loaded.model, loaded.vocab_size),
        ids,
        max_new_tokens=options.max_new_tokens,
        vocab_size=loaded.vocab_size,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed or 0,
        eod=None if options.ignore_eod else loaded.eod,
        max_context=loaded.max_positions,
        on_token=stream,
    )
    if stream is not None:
        stream.finish()
        return
    for result in results:
        print(tokenizer.decode(result))


class _Stream:
    """Writes text as its tokens come, and never half a character."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._tokenizer, self._ids, self._written = loaded.tokenizer, list[int](), ""

    def __call__(self, _row: int, token: int) -> None:
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if not text.endswith("�"):
            self._write(text)

    def finish(self) -> None:
        self._write(self._tokenizer.decode(self._ids))
        print(flush=True)

    def _write(self, text: str) -> None:
        print(text[len(self._written) :], end="", flush=True)
        self._written = text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="generate.py", description=_DESCRIPTION, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--load", required=True, help="folder of checkpoints, one of them, or a Hugging Face folder"
    )
    add("--ckpt-step", type=int, help="iteration of the checkpoint [the newest]")
    add("--tokenizer-model", help="where the tokenizer lies [as in training]")
    add("--prompt", nargs="+", help="one or more; numbers where the model has no tokenizer")
    add("--max-new-tokens", type=int, default=128, help="[default: 128]")
    add("--temperature", type=float, default=1.0, help="0: the most likely token [default: 1]")
    add("--top-k", type=int, help="of the k most likely tokens only")
    add("--top-p", type=float, help="of the most likely tokens that sum to this probability only")
    add("--seed", type=int, help="[default: 0]")
    add("--ignore-eod", action="store_true", help="go on behind the end of a text")
    add("--device", default="cpu", help="such as cuda [default: cpu]")
    add("--trust-remote-code", action="store_true", help="run code that a foreign folder holds")
    return parser
