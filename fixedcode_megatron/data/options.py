"""What a preprocessing run is asked to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fixedcode_megatron.data.hub import HubDataset
from fixedcode_megatron.data.indexed import dtype_for_vocab
from fixedcode_megatron.data.sentences import SPLITTERS
from fixedcode_megatron.data.tokenizers import Tokenizer
from fixedcode_megatron.errors import UserError


@dataclass(kw_only=True)
class PreprocessOptions:
    """What `tools/preprocess_data.py` is asked to do; the names are its flags.

    Attributes
    ----------
    input
        Files, globs or folders, see `inputs.py`.
    output_prefix
        Outputs are `{output_prefix}_{key}_document.bin`, `.idx` and a summary, `.json`.
    hf_dataset
        A Hugging Face dataset in the place of `input`.
    tokenizer_type, tokenizer_model, vocab_file, merge_file, vocab_size, tiktoken_pattern,
    tiktoken_special_tokens, parse_special_tokens
        See `build_tokenizer`.
    tokenizer_engine
        "auto", "hf", "gigatoken" or "fastokens", see `engine_check.py`. Ids do not depend on it.
    workers
        Worker processes; 0 tokenizes in this process. The output does not depend on it.
    split_sentences, sentence_splitter, lang
        One sequence per sentence, outputs `..._sentence`; how to split, the language of "nltk".
    keep_newlines
        With `split_sentences`: white space between sentences stays, at the end of the first.
    dtype
        "auto" (uint16 where the vocabulary fits), "uint16" or "int32".
    on_error
        "stop" at the first line that is no document, or "skip", count and list them.
    resume
        See `Output.begin`.
    checkpoint_interval
        Seconds of work that an interruption may cost; 0 makes no checkpoints.
    shard_index, num_shards
        Do one of several equal parts of the input.
    max_tokens
        Stop after the document that reaches this number of tokens.
    progress
        True for a bar, False for none; None for a bar on a terminal, lines elsewhere.
    """

    output_prefix: str
    input: Sequence[str] = ()
    hf_dataset: HubDataset | None = None
    tokenizer_type: str = "HuggingFaceTokenizer"
    tokenizer_model: str | None = None
    vocab_file: str | None = None
    merge_file: str | None = None
    vocab_size: int | None = None
    tiktoken_pattern: str | None = None
    tiktoken_special_tokens: Sequence[str] | None = None
    parse_special_tokens: bool = False
    tokenizer_engine: str = "auto"
    json_keys: Sequence[str] = ("text",)
    append_eod: bool = False
    split_sentences: bool = False
    sentence_splitter: str = "rules"
    lang: str = "english"
    keep_newlines: bool = False
    workers: int = 1
    dtype: str = "auto"
    on_error: str = "stop"
    overwrite: bool = False
    resume: bool | None = None
    checkpoint_interval: float = 5.0
    num_shards: int = 1
    shard_index: int = 0
    max_tokens: int | None = None
    log_interval: float = 10.0
    progress: bool | None = None

    def tokenizer(self) -> dict[str, Any]:
        """Keyword arguments of `build_tokenizer`."""
        names = ("tokenizer_type", "tokenizer_model", "vocab_file", "merge_file", "vocab_size")
        more = ("tiktoken_pattern", "tiktoken_special_tokens", "parse_special_tokens")
        return {name: getattr(self, name) for name in (*names, *more)}

    @property
    def prefix(self) -> str:
        """Output prefix of this shard: natural order of the names is the order of the shards."""
        if self.num_shards == 1:
            return self.output_prefix
        width = max(5, len(str(self.num_shards)))
        return f"{self.output_prefix}_{self.shard_index:0{width}d}-of-{self.num_shards:0{width}d}"

    def dataset_prefixes(self) -> list[str]:
        """Prefix of each key's files."""
        level = "sentence" if self.split_sentences else "document"
        return [f"{self.prefix}_{key}_{level}" for key in self.json_keys]

    def check(self) -> None:
        """Refuse what cannot be.

        Raises
        ------
        UserError
            Naming the flag and a value that would work.
        """
        if self.workers < 0:
            raise UserError(f"--workers {self.workers}: give 0 (this process only) or more")
        for flag, value, known in (
            ("on-error", self.on_error, ("stop", "skip")),
            ("dtype", self.dtype, ("auto", "uint16", "int32")),
            ("sentence-splitter", self.sentence_splitter, SPLITTERS),
        ):
            if value not in known:
                raise UserError(f"--{flag} {value}: give one of {', '.join(known)}")
        if self.keep_newlines and not self.split_sentences:
            raise UserError("--keep-newlines is for --split-sentences: leave it out, or give both")
        if not self.json_keys or len(set(self.json_keys)) != len(self.json_keys):
            raise UserError(f"--json-keys {' '.join(self.json_keys)}: give different keys")
        if not 0 <= self.shard_index < self.num_shards:
            raise UserError(
                f"--shard-index {self.shard_index}: give 0 to {max(self.num_shards, 1) - 1}, below "
                f"--num-shards {self.num_shards} (1 or more)"
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UserError(f"--max-tokens {self.max_tokens}: give 1 or more, or leave it out")

    def numpy_dtype(self, tokenizer: Tokenizer) -> np.dtype:
        """Type of the ids.

        Raises
        ------
        UserError
            If uint16 is asked for and the vocabulary does not fit into it.
        """
        if self.dtype == "uint16" and tokenizer.vocab_size > 1 << 16:
            raise UserError(
                f"--dtype uint16 holds ids up to 65535, {tokenizer.name} has "
                f"{tokenizer.vocab_size} ids: give --dtype int32 or auto"
            )
        if self.dtype == "auto":
            return np.dtype(dtype_for_vocab(tokenizer.vocab_size))
        return np.dtype(self.dtype)
