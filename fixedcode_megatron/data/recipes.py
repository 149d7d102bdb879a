"""Ready-made training data. `prepare_python_library` needs nothing but the Python that runs it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from fixedcode_megatron.data.bpe import train_byte_level_bpe
from fixedcode_megatron.data.files import (
    exclusive_lock,
    sha256_of_file,
    temporary_beside,
    write_text_whole,
)
from fixedcode_megatron.data.preprocess import PreprocessOptions, preprocess
from fixedcode_megatron.data.python_library import Document, library_documents
from fixedcode_megatron.data.workers import available_cores
from fixedcode_megatron.errors import UserError

logger = logging.getLogger(__name__)

RECIPE_VERSION = 1
MARKER = "recipe.json"
_SEED = b"fixedcode-megatron python-library 1"
_FILES = (
    "corpus.jsonl", "corpus_text_document.bin", "corpus_text_document.idx",
    "tokenizer/tokenizer.json",
)  # fmt: skip


@dataclass(frozen=True)
class PreparedData:
    """Where a recipe put its results.

    Attributes
    ----------
    data_prefix
        Value for `--data-path`.
    tokenizer_model
        Value for `--tokenizer-model` (a HuggingFaceTokenizer).
    vocab_size, documents, tokens
        Sizes.
    """

    folder: Path
    data_prefix: Path
    tokenizer_model: Path
    vocab_size: int
    documents: int
    tokens: int


def prepare_python_library(
    folder: str | os.PathLike, vocab_size: int = 4096, progress: bool = True
) -> PreparedData:
    """Make a corpus, a tokenizer and an indexed dataset from this Python's own library.

    The folder appears whole: `corpus.jsonl`, `tokenizer/tokenizer.json`,
    `corpus_text_document.bin/.idx` and `recipe.json`, which holds the recipe's version, Python's,
    and a hash of each file. Where it is there and whole, nothing is done. Any number of processes
    may call this at once: one works, the others wait for it.

    Parameters
    ----------
    folder
        Must not exist, be empty, or hold an earlier result of this function.
    vocab_size
        Exact size of the byte-level BPE; `<|endoftext|>` is id 0.
    progress
        Show progress (bars on a terminal).

    Raises
    ------
    UserError
        If the folder holds something else, or this Python has no library sources.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder.with_name(f".{folder.name}.lock")):
        marker = _read_marker(folder, vocab_size)
        if marker is None:
            _refuse_foreign(folder)
            marker = _build(folder, vocab_size, progress)
    return PreparedData(
        folder=folder,
        data_prefix=folder / "corpus_text_document",
        tokenizer_model=folder / "tokenizer",
        vocab_size=marker["vocab_size"],
        documents=marker["documents"],
        tokens=marker["tokens"],
    )


def _read_marker(folder: Path, vocab_size: int) -> dict | None:
    """The marker of a whole result of this recipe, or None."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        wanted = {"recipe": "python-library", "version": RECIPE_VERSION, "vocab_size": vocab_size}
        if any(marker.get(name) != value for name, value in wanted.items()):
            return None
        if any(
            sha256_of_file(folder / name) != digest for name, digest in marker["sha256"].items()
        ):
            logger.warning("%s: a file differs from what %s says; made again", folder, MARKER)
            return None
        return marker
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def _refuse_foreign(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise UserError(f"{folder} holds other files: name a new folder for the quickstart's data")


def _build(folder: Path, vocab_size: int, progress: bool) -> dict:
    """Make everything in a folder beside the final one, then rename it."""
    work = temporary_beside(folder)
    shutil.rmtree(work, ignore_errors=True)
    (work / "tokenizer").mkdir(parents=True)
    try:
        logger.info("%s: gathering Python's own documentation and library", folder)
        documents = gather(progress)
        lines = [json.dumps({"text": d.text, "source": d.source}) + "\n" for d in documents]
        write_text_whole(work / _FILES[0], "".join(lines))
        logger.info("training a tokenizer of %d ids on %d documents", vocab_size, len(documents))
        texts = (document.text for document in documents)
        train_byte_level_bpe(texts, vocab_size, work / _FILES[3], progress=progress)
        (summary,) = preprocess(
            PreprocessOptions(
                input=[str(work / _FILES[0])],
                output_prefix=str(work / "corpus"),
                tokenizer_model=str(work / "tokenizer"),
                append_eod=True,
                workers=min(4, available_cores()),
                progress=None if progress else False,
            )
        )
        (work / "corpus_text_document.json").unlink()  # it names the temporary folder
        marker = {
            "recipe": "python-library",
            "version": RECIPE_VERSION,
            "python": platform.python_version(),
            "vocab_size": vocab_size,
            "documents": summary["documents"],
            "tokens": summary["tokens"],
            "max_token_id": summary["max_token_id"],
            "characters": sum(len(document.text) for document in documents),
            "sha256": {name: sha256_of_file(work / name) for name in _FILES},
        }
        write_text_whole(work / MARKER, json.dumps(marker, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(work, folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return marker


def gather(progress: bool = True) -> Sequence[Document]:
    """The corpus: every different document once, in an order drawn from a fixed seed.

    Raises
    ------
    UserError
        If less than 2 MB of text is found.
    """
    different: dict[str, Document] = {}
    documents = library_documents()
    for document in tqdm(
        documents,
        desc="reading Python's library",
        unit=" documents",
        disable=None if progress else True,
    ):
        different.setdefault(document.text, document)
    size = sum(map(len, different))
    if size < 2_000_000:
        raise UserError(
            f"this Python's library gives only {size} characters of text (2,000,000 are needed): "
            "use a Python with its library's sources installed"
        )
    return evenly_mixed(different.values())


def evenly_mixed(documents: Iterable[Document]) -> list[Document]:
    """Shuffle so that every stretch of the corpus has the same share of text of each kind.

    Within a kind the order is that of a hash of the names, the same on every machine. A document
    stands where its kind's text, laid out from 0 to 1, has its middle. So the last 5 % of the
    documents are a fair held-out split, which a plain shuffle of 1,000 documents is not.
    """
    kinds: dict[str, list[Document]] = {}
    for document in documents:
        kinds.setdefault(document.kind, []).append(document)
    placed: list[tuple[float, str, Document]] = []
    for kind in kinds.values():
        kind.sort(key=lambda d: hashlib.sha256(_SEED + d.source.encode()).digest())
        total, before = sum(len(d.text) for d in kind), 0
        for document in kind:
            placed.append(((before + len(document.text) / 2) / total, document.source, document))
            before += len(document.text)
    return [document for *_, document in sorted(placed, key=lambda item: item[:2])]
