"""SentencePiece models (`tokenizer.model`), read by the `sentencepiece` library."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from fixedcode_megatron.data.tokenizers import Tokenizer
from fixedcode_megatron.errors import UserError


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model; its EOS ends a document.

    Control symbols such as `</s>` are never read from a text: that is SentencePiece's own rule.
    User-defined symbols of the model always are.

    Raises
    ------
    UserError
        If the library is missing, the file is missing or unreadable, or special tokens should be
        parsed.
    """

    def __init__(self, model: str, *, parse_special_tokens: bool = False) -> None:
        try:
            import sentencepiece
        except ImportError as error:
            raise UserError(
                "--tokenizer-type SentencePieceTokenizer needs the sentencepiece library: "
                "pip install sentencepiece"
            ) from error
        if parse_special_tokens:
            raise UserError(
                "--parse-special-tokens: SentencePiece never reads control symbols from a text; "
                "leave the flag out"
            )
        path = Path(model)
        if not path.is_file():
            raise UserError(f"--tokenizer-model {model}: no such file; give a tokenizer.model")
        content = path.read_bytes()
        try:
            self._inner = sentencepiece.SentencePieceProcessor(model_proto=content)
        except Exception as error:
            raise UserError(
                f"--tokenizer-model {model}: not a SentencePiece model ({error})"
            ) from error
        self.name = f"tokenizer {model}"
        self.vocab_size = self._inner.vocab_size()
        eos = self._inner.eos_id()
        self.eod_id = eos if eos >= 0 else None
        self.fingerprint = hashlib.sha256(content).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._inner.encode(list(texts), num_threads=1)

    def decode(self, ids: Sequence[int]) -> str:
        return self._inner.decode([int(i) for i in ids])
