"""Hold documents out of a dataset by their content.

A document goes where a hash of its ids says, whatever its place, its shard or the run: equal
documents stay on one side, so no text is both trained on and held out, and a document's side does
not change when others are added. That holds for each shard of a dataset split on its own, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from fixedcode_megatron.data.index_format import summary_path
from fixedcode_megatron.data.indexed import IndexedDatasetReader
from fixedcode_megatron.data.indexed_writer import IndexedDatasetWriter
from fixedcode_megatron.data.summary import common_facts, write_summary
from fixedcode_megatron.errors import UserError

_BLOCK_TOKENS = 1 << 22
_BLOCK_DOCUMENTS = 1 << 16


class DocumentBlock(NamedTuple):
    """Consecutive documents of a dataset.

    Attributes
    ----------
    ids
        All their ids.
    lengths
        Ids of each sequence, int64.
    sequences
        Sequences of each document, int64.
    sizes
        Ids of each document, int64.
    modes
        Mode of each sequence, or None.
    """

    ids: np.ndarray
    lengths: np.ndarray
    sequences: np.ndarray
    sizes: np.ndarray
    modes: np.ndarray | None

    def keep(self, documents: np.ndarray) -> DocumentBlock:
        """Those documents alone, bool [documents]."""
        of_sequences = np.repeat(documents, self.sequences)
        return DocumentBlock(
            self.ids[np.repeat(documents, self.sizes)],
            self.lengths[of_sequences],
            self.sequences[documents],
            self.sizes[documents],
            None if self.modes is None else self.modes[of_sequences],
        )


def document_blocks(reader: IndexedDatasetReader) -> Iterator[DocumentBlock]:
    """All documents in blocks of about 4 million ids (more if one document is longer)."""
    itemsize, first = reader.dtype.itemsize, 0
    while first < reader.num_documents:
        ends = np.asarray(reader.document_indices[first : first + _BLOCK_DOCUMENTS + 1])
        lengths = np.asarray(reader.sequence_lengths[ends[0] : ends[-1]], np.int64)
        stops = np.concatenate(([0], np.cumsum(lengths)))[ends - ends[0]]
        count = max(1, int(np.searchsorted(stops, _BLOCK_TOKENS, side="right")) - 1)
        ends, stops = ends[: count + 1], stops[: count + 1]
        low, high = int(ends[0]), int(ends[-1])
        begin = int(reader.sequence_pointers[low]) // itemsize if high > low else 0
        modes = reader.sequence_modes
        yield DocumentBlock(
            np.asarray(reader.tokens[begin : begin + int(stops[-1])]),
            lengths[: high - low],
            np.diff(ends),
            np.diff(stops),
            None if modes is None else np.asarray(modes[low:high]),
        )
        first += count


def content_shares(ids: np.ndarray, sizes: np.ndarray, seed: int) -> np.ndarray:
    """A number in [0, 1) from each document's ids, float64 [documents].

    It is the first 53 bits of BLAKE2b over the ids as 32-bit little-endian numbers, with the seed
    as salt: the same for uint16 and int32 datasets, on any machine.
    """
    salt = seed.to_bytes(16, "little")
    content = ids.astype("<u4").view(np.uint8).data
    digests = bytearray()
    begin = 0
    for size in (4 * sizes).tolist():
        piece = content[begin : begin + size]
        digests += hashlib.blake2b(piece, digest_size=8, salt=salt).digest()
        begin += size
    return (np.frombuffer(digests, ">u8") >> 11) * 2.0**-53


def split(
    prefixes: Sequence[str],
    output_prefix: str,
    *,
    valid: float,
    test: float = 0.0,
    seed: int = 0,
    overwrite: bool = False,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> dict[str, dict[str, Any]]:
    """Write `{output_prefix}_train`, `_valid` and, if wanted, `_test`.

    Parameters
    ----------
    prefixes
        Datasets without extension, read in this order; the order of documents is kept.
    valid, test
        Expected share of documents. Growing `valid` only moves documents out of training.
    seed
        Another seed holds other documents out.

    Returns
    -------
    dict
        The summary of each part, by its name.

    Raises
    ------
    UserError
        If the shares make no sense, a part gets no token, or the datasets differ in type. Then
        nothing is left at the output.
    """
    if not (0 < valid < 1 and 0 <= test < 1 and valid + test < 1):
        raise UserError(f"--valid {valid:g} --test {test:g}: give shares such as --valid 0.001")
    if not 0 <= seed < 1 << 128:
        raise UserError(f"--seed {seed}: give a number from 0 to 2^128 - 1")
    readers = [IndexedDatasetReader(prefix) for prefix in prefixes]
    _refuse_mixtures(readers)
    names = ("train", "valid", "test") if test else ("train", "valid")
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(_writer(f"{output_prefix}_{name}", readers[0], overwrite))
            for name in names
        }
        for reader in readers:
            for block in document_blocks(reader):
                places = content_shares(block.ids, block.sizes, seed)
                _distribute(block, _bounds(places, valid, test), writers)
                on_bytes(block.ids.nbytes)
        for name, writer in writers.items():
            if writer.num_tokens == 0:
                raise UserError(
                    f"no document falls into {output_prefix}_{name}: --valid {valid:g} "
                    f"--test {test:g} is too little for this dataset"
                )
            writer.prepare()
        for writer in writers.values():
            summary_path(writer.prefix).unlink(missing_ok=True)
            writer.commit()
    settings = {"split_from": list(prefixes), "valid": valid, "test": test, "seed": seed}
    return {name: _summarise(writer, prefixes, settings) for name, writer in writers.items()}


def _writer(prefix: str, like: IndexedDatasetReader, overwrite: bool) -> IndexedDatasetWriter:
    multimodal = like.sequence_modes is not None
    return IndexedDatasetWriter(prefix, like.dtype.type, overwrite=overwrite, multimodal=multimodal)


def _refuse_mixtures(readers: Sequence[IndexedDatasetReader]) -> None:
    first = readers[0]
    for reader in readers[1:]:
        alike = reader.dtype == first.dtype
        if not alike or (reader.sequence_modes is None) != (first.sequence_modes is None):
            raise UserError(
                f"{first.prefix} ({first.dtype.name}) and {reader.prefix} ({reader.dtype.name}) "
                "differ in type or in having modes: split each one on its own"
            )


def _bounds(places: np.ndarray, valid: float, test: float) -> dict[str, np.ndarray]:
    """Which documents go where: test takes the top of [0, 1), validation the bottom."""
    in_valid, in_test = places < valid, places >= 1 - test
    return {"train": ~(in_valid | in_test), "valid": in_valid, "test": in_test}


def _distribute(
    block: DocumentBlock, chosen: dict[str, np.ndarray], writers: dict[str, IndexedDatasetWriter]
) -> None:
    for name, writer in writers.items():
        part = block if chosen[name].all() else block.keep(chosen[name])
        writer.add_block(part.ids, part.lengths, part.sequences, part.modes)


def _summarise(
    writer: IndexedDatasetWriter, prefixes: Sequence[str], settings: dict[str, Any]
) -> dict[str, Any]:
    summary = {
        "documents": writer.num_documents,
        "tokens": writer.num_tokens,
        "tokens_per_document": round(writer.num_tokens / writer.num_documents, 2),
        "max_token_id": writer.max_token_id,
        "dtype": writer.dtype.name,
        "bin_bytes": writer.num_tokens * writer.dtype.itemsize,
        **common_facts(prefixes),
        **settings,
    }
    write_summary(writer.prefix, summary)
    return summary
