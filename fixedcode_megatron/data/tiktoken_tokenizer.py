"""Byte-level BPEs given as ranks: `.tiktoken` files and Megatron's JSON form of them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from fixedcode_megatron.data.tokenizers import Tokenizer
from fixedcode_megatron.errors import UserError

_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": _SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL,
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}?"
    + rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}?"
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + _TAIL,
    "v1": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL,
    "v2": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + _TAIL,
}
_BY_NAME = {"r50k": "gpt2", "p50k": "gpt2", "gpt2": "gpt2", "cl100k": "cl100k", "o200k": "o200k"}
# Ids of <|endoftext|> in the published vocabularies; elsewhere it follows the last rank.
_END_OF_TEXT = {"r50k": 50256, "p50k": 50256, "gpt2": 50256, "cl100k": 100257, "o200k": 199999}
_MEGATRON_SPECIALS = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
_MEGATRON_NUM_SPECIALS = 1000


class TikTokenizer(Tokenizer):
    """Ranks, a splitting pattern and special tokens, read by the `tiktoken` library.

    Parameters
    ----------
    model
        A `.tiktoken` file (a line is base64 of the bytes, a space, the rank): special tokens
        follow the ranks. Or Megatron's JSON, a list of `{"rank": ..., "token_bytes": ...}`:
        1,000 special ids come first.
    pattern
        A name out of `PATTERNS`; None takes it from the file's name (cl100k_base, o200k_base,
        p50k_base, r50k_base), or Megatron's `v1` for JSON.
    special_tokens
        Spellings; the first of `</s>`, `<|endoftext|>` and `<|end_of_text|>` among them ends a
        document. Default: `<|endoftext|>`, or Megatron's seven for JSON.

    Raises
    ------
    UserError
        If the library or the file is missing, the file is unreadable, or the pattern is unknown.
    """

    def __init__(
        self,
        model: str,
        pattern: str | None = None,
        special_tokens: Sequence[str] | None = None,
        *,
        parse_special_tokens: bool = False,
    ) -> None:
        try:
            import tiktoken
        except ImportError as error:
            raise UserError(
                "--tokenizer-type TikTokenizer needs the tiktoken library: pip install tiktoken"
            ) from error
        path = Path(model)
        if not path.is_file():
            raise UserError(
                f"--tokenizer-model {model}: no such file; give a .tiktoken or .json file of ranks"
            )
        content = path.read_bytes()
        stem = path.name.split("_")[0].split(".")[0]
        is_json = content.lstrip()[:1] == b"["
        pattern = pattern or ("v1" if is_json else _BY_NAME.get(stem))
        if pattern not in PATTERNS:
            raise UserError(
                f"--tiktoken-pattern {pattern}: {path.name} does not tell how to split text; give "
                f"one of {', '.join(PATTERNS)}"
            )
        try:
            ranks = _read_json(content) if is_json else _read_lines(content)
        except (ValueError, KeyError, TypeError, binascii.Error) as error:
            raise UserError(f"--tokenizer-model {model}: no table of ranks ({error})") from error
        if is_json:
            names = list(special_tokens or _MEGATRON_SPECIALS)
            specials = {name: i for i, name in enumerate(names)}
            self._first_rank = _MEGATRON_NUM_SPECIALS
        else:
            names = list(special_tokens or ("<|endoftext|>",))
            first = _END_OF_TEXT.get(stem, max(ranks.values()) + 1)
            specials = {name: first + i for i, name in enumerate(names)}
            self._first_rank = 0
        shift = self._first_rank
        self._inner = tiktoken.Encoding(
            path.name,
            pat_str=PATTERNS[pattern],
            mergeable_ranks={token: rank + shift for token, rank in ranks.items()},
            special_tokens=specials,
        )
        self._allowed = set(names) if parse_special_tokens else None
        self.name = f"tokenizer {model}"
        self.vocab_size = max(max(ranks.values()) + shift, max(specials.values())) + 1
        ends = [specials[n] for n in ("</s>", "<|endoftext|>", "<|end_of_text|>") if n in specials]
        self.eod_id = ends[0] if ends else None
        digest = hashlib.sha256(content)
        digest.update(json.dumps([pattern, names, parse_special_tokens]).encode())
        self.fingerprint = digest.hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if self._allowed is None:
            return [self._inner.encode_ordinary(text) for text in texts]
        return [self._inner.encode(text, allowed_special=self._allowed) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return self._inner.decode([int(i) for i in ids])


def _read_lines(content: bytes) -> dict[bytes, int]:
    pairs = (line.split() for line in content.splitlines() if line.strip())
    return {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}


def _read_json(content: bytes) -> dict[bytes, int]:
    return {base64.b64decode(e["token_bytes"]): int(e["rank"]) for e in json.loads(content)}
