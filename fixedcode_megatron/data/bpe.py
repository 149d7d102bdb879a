"""Train a byte-level BPE of an exact size with the `tokenizers` library."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from fixedcode_megatron.data.files import write_text_whole
from fixedcode_megatron.errors import UserError

EOD_TOKEN = "<|endoftext|>"


def train_byte_level_bpe(
    texts: Iterable[str], vocab_size: int, path: str | os.PathLike, *, progress: bool = True
) -> None:
    """Train a GPT-2-style BPE and write it to `path`, a `tokenizer.json`.

    Id 0 is `<|endoftext|>`, the next 256 stand for the bytes, so that every text can be encoded
    and decoded without loss; the rest are merges. The same texts give the same file.

    Parameters
    ----------
    texts
        Documents; what is kept in memory is their distinct words, not the texts.
    vocab_size
        Exact number of ids, at least 257.
    progress
        Show bars if stderr is a terminal.

    Raises
    ------
    UserError
        If `vocab_size` is below 257 or the texts have too few different words for it.
    """
    import tokenizers

    if vocab_size < 257:
        raise UserError(f"--vocab-size {vocab_size}: give 257 (256 bytes and the EOD) or more")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOD_TOKEN],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=progress and sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    found = tokenizer.get_vocab_size(with_added_tokens=True)
    if found != vocab_size:
        raise UserError(
            f"--vocab-size {vocab_size}: the text is too small, it gave {found} ids; add text or "
            f"give --vocab-size {found}"
        )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_whole(path, tokenizer.to_str(pretty=False))
