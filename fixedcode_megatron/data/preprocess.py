"""Documents to `{prefix}_{key}_document.bin/.idx`: tokenize, append the EOD id, write."""

from __future__ import annotations

import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np

from fixedcode_megatron.data.documents import (
    Block,
    Rejected,
    expand_inputs,
    parse_block,
    read_blocks,
    rejection,
)
from fixedcode_megatron.data.files import write_text_whole
from fixedcode_megatron.data.indexed import IndexedDatasetWriter, bin_path, dtype_for_vocab
from fixedcode_megatron.data.progress import ByteProgress
from fixedcode_megatron.data.tokenizers import Tokenizer, build_tokenizer
from fixedcode_megatron.data.workers import ordered_map
from fixedcode_megatron.errors import UserError

_BATCH_CHARACTERS = 1 << 18  # the tokenizers library keeps about 50 bytes a token for a batch


@dataclass(kw_only=True)
class PreprocessOptions:
    """What `tools/preprocess_data.py` is asked to do; the names are Megatron's flags.

    Attributes
    ----------
    input
        Files, globs or folders of JSON lines.
    output_prefix
        Outputs are `{output_prefix}_{key}_document.bin`, `.idx` and a summary, `.json`.
    workers
        Worker processes; 0 tokenizes in this process. The output does not depend on it.
    dtype
        "auto" (uint16 where the vocabulary fits), "uint16" or "int32".
    on_error
        "stop" at the first line that is no document, or "skip" and count them.
    progress
        True for a bar, False for none; None for a bar on a terminal, lines elsewhere.
    """

    input: Sequence[str]
    output_prefix: str
    tokenizer_type: str = "HuggingFaceTokenizer"
    tokenizer_model: str | None = None
    vocab_file: str | None = None
    merge_file: str | None = None
    vocab_size: int | None = None
    json_keys: Sequence[str] = ("text",)
    append_eod: bool = False
    workers: int = 1
    dtype: str = "auto"
    on_error: str = "stop"
    overwrite: bool = False
    log_interval: float = 10.0
    progress: bool | None = None

    def tokenizer_arguments(self) -> tuple:
        """Arguments of `build_tokenizer`, by position, then the vocabulary size."""
        return (
            self.tokenizer_type,
            self.tokenizer_model,
            self.vocab_file,
            self.merge_file,
            self.vocab_size,
        )


@dataclass
class EncodedBlock:
    """What a worker makes of a block: per key the ids of all documents and their lengths."""

    ids: list[np.ndarray]
    lengths: list[np.ndarray]
    rejected: Counter = field(default_factory=Counter)
    first_rejected: Rejected | None = None


def make_encoder(
    tokenizer_arguments: tuple, json_keys: Sequence[str], append_eod: bool, dtype: str, stop: bool
) -> Callable[[Block], EncodedBlock]:
    """Build a worker's function from a block of lines to ids (see `EncodedBlock`)."""
    *arguments, vocab_size = tokenizer_arguments
    tokenizer = build_tokenizer(*arguments, vocab_size=vocab_size)
    eod = tokenizer.eod if append_eod else None

    def encode(block: Block) -> EncodedBlock:
        columns: list[list[list[int]]] = [[] for _ in json_keys]
        rejected: Counter = Counter()
        first = None
        for batch in _batches(block, json_keys, rejected):
            if isinstance(batch, Rejected):
                first = first or batch
                if stop:
                    break
                continue
            _encode_batch(tokenizer, eod, batch, columns, rejected)
        flat = [np.array([i for ids in column for i in ids], dtype=dtype) for column in columns]
        lengths = [np.array([len(ids) for ids in column], dtype=np.int32) for column in columns]
        return EncodedBlock(flat, lengths, rejected, first)

    return encode


def _batches(
    block: Block, keys: Sequence[str], rejected: Counter
) -> Iterator[list[list[str]] | Rejected]:
    """Records of a block in batches of bounded size; rejected lines are counted and passed on."""
    batch: list[list[str]] = []
    characters = 0
    for record in parse_block(block, keys):
        if isinstance(record, Rejected):
            rejected[record.kind] += 1
            if record.kind != "blank":  # a blank line is no mistake
                yield record
            continue
        batch.append(record)
        characters += sum(map(len, record))
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _encode_batch(
    tokenizer: Tokenizer,
    eod: int | None,
    batch: list[list[str]],
    columns: list[list[list[int]]],
    rejected: Counter,
) -> None:
    """Append the ids of a batch; a record without any token is dropped and counted as empty."""
    try:
        encoded = [tokenizer.encode_batch(list(texts)) for texts in zip(*batch, strict=True)]
    except UserError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exceptions
        raise UserError(f"{tokenizer.name} cannot encode a document: {error}") from error
    for row in zip(*encoded, strict=True):
        if not any(row):
            rejected["empty"] += 1
            continue
        for column, ids in zip(columns, row, strict=True):
            if eod is not None and ids:  # an empty text beside a full one: a document without ids
                ids.append(eod)
            column.append(ids)


def preprocess(options: PreprocessOptions) -> list[dict]:
    """Tokenize documents into Megatron's indexed datasets.

    Records whose every text is empty are left out. With several keys a record in which only some
    texts are empty gives documents without tokens there, so that documents stay aligned.

    Returns
    -------
    list of dict
        The summary of each key, as in `{output_prefix}_{key}_document.json`.

    Raises
    ------
    UserError
        For every mistake in the options, the tokenizer or the documents. Then no file is left.
    """
    _check(options)
    tokenizer = build_tokenizer(*options.tokenizer_arguments()[:-1], vocab_size=options.vocab_size)
    if options.append_eod:
        _ = tokenizer.eod  # refuse before anything is read
    files = expand_inputs(options.input)
    dtype = _dtype(options.dtype, tokenizer)
    stop = options.on_error == "stop"
    encoder_arguments = (
        options.tokenizer_arguments(),
        tuple(options.json_keys),
        options.append_eod,
        dtype.name,
        stop,
    )
    started = time.monotonic()
    counts: Counter = Counter()
    total_bytes = sum(path.stat().st_size for path in files)
    prefixes = [f"{options.output_prefix}_{key}_document" for key in options.json_keys]
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                IndexedDatasetWriter(prefix, dtype.type, overwrite=options.overwrite)
            )
            for prefix in prefixes
        ]
        progress = stack.enter_context(
            ByteProgress(total_bytes, options.progress, options.log_interval)
        )
        sent: list[Block] = []
        results = ordered_map(
            make_encoder, encoder_arguments, _remember(read_blocks(files), sent), options.workers
        )
        stack.callback(results.close)
        for result in results:
            block = sent.pop(0)
            if stop and result.first_rejected is not None:
                raise rejection(block, result.first_rejected)
            counts.update(result.rejected)
            for writer, ids, lengths in zip(writers, result.ids, result.lengths, strict=True):
                writer.add_documents(ids, lengths)
            progress.update(block.read_bytes, sum(map(len, result.ids)))
        return _finish(options, tokenizer, files, writers, counts, time.monotonic() - started)


def _remember(blocks: Iterator[Block], sent: list[Block]) -> Iterator[Block]:
    """Pass blocks on, keeping what their results need: the place, not the text."""
    for block in blocks:
        sent.append(Block(block.path, block.first_line, b"", block.read_bytes))
        yield block


def _check(options: PreprocessOptions) -> None:
    if options.workers < 0:
        raise UserError(f"--workers {options.workers}: give 0 (this process only) or more")
    if options.on_error not in ("stop", "skip"):
        raise UserError(f"--on-error {options.on_error}: give stop or skip")
    if options.dtype not in ("auto", "uint16", "int32"):
        raise UserError(f"--dtype {options.dtype}: give auto, uint16 or int32")
    if not options.json_keys or len(set(options.json_keys)) != len(options.json_keys):
        raise UserError(f"--json-keys {' '.join(options.json_keys)}: give different keys")


def _dtype(wanted: str, tokenizer: Tokenizer) -> np.dtype:
    if wanted == "uint16" and tokenizer.vocab_size > 1 << 16:
        raise UserError(
            f"--dtype uint16 holds ids up to 65535, {tokenizer.name} has {tokenizer.vocab_size} "
            "ids: give --dtype int32 or auto"
        )
    return np.dtype(dtype_for_vocab(tokenizer.vocab_size) if wanted == "auto" else wanted)


def _finish(
    options: PreprocessOptions,
    tokenizer: Tokenizer,
    files: Sequence[Path],
    writers: Sequence[IndexedDatasetWriter],
    counts: Counter,
    seconds: float,
) -> list[dict]:
    """Check all outputs, then give all of them their names: summary, `.bin`, `.idx`."""
    for writer in writers:
        writer.prepare()
    common = {
        "tokenizer": tokenizer.name,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "append_eod": options.append_eod,
        "eod": tokenizer.eod_id,
        "skipped": {kind: counts[kind] for kind in sorted(counts)},
        "inputs": [str(path) for path in files],
        "input_bytes": sum(path.stat().st_size for path in files),
        "seconds": round(seconds, 3),
        "versions": {
            "python": platform.python_version(),
            "numpy": version("numpy"),
            "tokenizers": version("tokenizers"),
        },
    }
    summaries = []
    for writer, key in zip(writers, options.json_keys, strict=True):
        summary = {
            "key": key,
            "documents": writer.num_documents,
            "tokens": writer.num_tokens,
            "tokens_per_document": round(writer.num_tokens / writer.num_documents, 2),
            "max_token_id": writer.max_token_id,
            "dtype": writer.dtype.name,
            "bin_bytes": writer.num_tokens * writer.dtype.itemsize,
            **common,
        }
        write_text_whole(
            bin_path(writer.prefix).with_suffix(".json"), json.dumps(summary, indent=1)
        )
        writer.commit()
        summaries.append(summary)
    return summaries
