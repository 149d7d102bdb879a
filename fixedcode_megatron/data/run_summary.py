"""What a preprocessing run says about its output, for the JSON file beside it."""

from __future__ import annotations

import platform
from typing import Any

from fixedcode_megatron.data.indexed import IndexedDatasetWriter
from fixedcode_megatron.data.options import PreprocessOptions
from fixedcode_megatron.data.output import Output
from fixedcode_megatron.data.tokenizers import Tokenizer
from fixedcode_megatron.data.work import Inputs

_LIBRARIES = (
    *("fixedcode-megatron", "numpy", "orjson", "tokenizers", "gigatoken", "fastokens"),
    *("sentencepiece", "tiktoken", "zstandard", "pyarrow", "datasets"),
)


def dataset_summary(writer: IndexedDatasetWriter, key: str) -> dict[str, Any]:
    """Counts of one dataset."""
    return {
        "key": key,
        "documents": writer.num_documents,
        "sequences": len(writer.lengths),
        "tokens": writer.num_tokens,
        "tokens_per_document": round(writer.num_tokens / writer.num_documents, 2),
        "max_token_id": writer.max_token_id,
        "dtype": writer.dtype.name,
        "bin_bytes": writer.num_tokens * writer.dtype.itemsize,
    }


def common_summary(
    options: PreprocessOptions,
    tokenizer: Tokenizer,
    inputs: Inputs,
    output: Output,
    versions: dict[str, str],
) -> dict[str, Any]:
    """Inputs, tokenizer, what was left out, and versions."""
    kinds = sorted(output.counts)
    return {
        "tokenizer": tokenizer.name,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "tokenizer_engine": output.engine,
        "vocab_size": tokenizer.vocab_size,
        "append_eod": options.append_eod,
        "eod": tokenizer.eod_id,
        "parse_special_tokens": options.parse_special_tokens,
        "skipped": {kind: output.counts[kind] for kind in kinds},
        "rejected": sum(output.counts[k] for k in kinds if k not in ("blank", "empty")),
        "inputs": inputs.names,
        "input_bytes": inputs.total_bytes,
        "shard": [options.shard_index, options.num_shards],
        "max_tokens": options.max_tokens,
        "versions": versions,
    }


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that are installed."""
    from importlib.metadata import PackageNotFoundError, version  # not at the start: 10 ms

    found = {"python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found
