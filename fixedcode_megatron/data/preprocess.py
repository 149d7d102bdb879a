"""Documents to `{prefix}_{key}_document.bin/.idx`: tokenize, append the EOD id, write."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fixedcode_megatron.data.encoding import (
    EncodedBlock,
    EncoderSpec,
    make_encoder,
    put_in_pending,
)
from fixedcode_megatron.data.engine_check import Sample, candidates, compare, probes, unusable
from fixedcode_megatron.data.engines import EngineError, EngineMismatch, EnginePlan
from fixedcode_megatron.data.index_format import bin_path, idx_path
from fixedcode_megatron.data.memory import return_freed_memory
from fixedcode_megatron.data.options import PreprocessOptions
from fixedcode_megatron.data.output import Output, cut_to_tokens
from fixedcode_megatron.data.progress import ByteProgress
from fixedcode_megatron.data.run_summary import (
    common_summary,
    dataset_summary,
    library_versions,
)
from fixedcode_megatron.data.sentences import make_splitter
from fixedcode_megatron.data.sources import Item, Lines, Payload, rejection
from fixedcode_megatron.data.summary import write_summary
from fixedcode_megatron.data.tokenizers import Tokenizer, build_tokenizer
from fixedcode_megatron.data.work import Inputs, Position, open_inputs
from fixedcode_megatron.data.workers import WorkerPool

__all__ = ["PreprocessOptions", "preprocess"]

logger = logging.getLogger(__name__)

# Options on which the output does not depend; another value continues an interrupted run.
_FREE = (
    *(
        "input",
        "hf_dataset",
        "output_prefix",
        "workers",
        "overwrite",
        "resume",
        "checkpoint_interval",
        "progress",
    ),
    *("log_interval", "tokenizer_engine", "tokenizer_model", "vocab_file", "merge_file"),
)


def preprocess(options: PreprocessOptions) -> list[dict[str, Any]]:
    """Tokenize documents into Megatron's indexed datasets.

    Records whose every text is empty are left out. With several keys a record in which only some
    texts are empty gives documents without tokens there, so that documents stay aligned.

    Returns
    -------
    list of dict
        The summary of each key, as in `{output_prefix}_{key}_document.json`; nothing for a shard
        of several that has no document.

    Raises
    ------
    UserError
        For every mistake in the options, the tokenizer or the documents. Then no file is left.
        Also if a worker dies: then the run can be continued, see `Output`.
    """
    options.check()
    pool = WorkerPool(options.workers)
    try:
        run = _Run(options)
        finished = run.finished_before()
        if finished is not None:
            return finished
        resume = options.resume
        for plan in candidates(run.tokenizer, options.tokenizer_engine):
            name = plan.engine if plan else "hf"
            try:
                return run.execute(pool, plan, resume)
            except EngineError as error:
                if options.tokenizer_engine == name:
                    raise unusable(name, error) from error
                logger.debug("%s", error)
            except EngineMismatch as error:
                logger.warning("warning: %s is not used: %s", name, error)
                resume = False
            pool.close()
            pool = WorkerPool(options.workers)
        raise AssertionError("HF tokenizers do every tokenizer")
    finally:
        pool.close()


class _Run:
    """A run after all that can be checked before documents are read was checked."""

    def __init__(self, options: PreprocessOptions) -> None:
        self.options = options
        self.tokenizer: Tokenizer = build_tokenizer(**options.tokenizer())
        self.eod = self.tokenizer.eod if options.append_eod else None
        self.dtype: np.dtype = options.numpy_dtype(self.tokenizer)
        if options.split_sentences:
            make_splitter(options.sentence_splitter, options.lang)
        self.inputs: Inputs = open_inputs(
            options.input, options.hf_dataset, options.json_keys,
            options.shard_index, options.num_shards,
        )  # fmt: skip
        fixed = {name: value for name, value in asdict(options).items() if name not in _FREE}
        identity = [1, fixed, self.inputs.identity(), self.tokenizer.fingerprint, self.dtype.name]
        self.job = hashlib.sha256(json.dumps(identity, default=str).encode()).hexdigest()
        self._lines_before = functools.cache(self.inputs.lines_before)
        self._started = time.monotonic()
        self._versions: Future[dict[str, str]]

    def finished_before(self) -> list[dict[str, Any]] | None:
        """With an explicit `resume`, the summaries of a run of this job that ended well."""
        if not self.options.resume or self.options.overwrite:
            return None
        try:
            summaries = [
                json.loads(Path(f"{prefix}.json").read_text(encoding="utf-8"))
                for prefix in self.options.dataset_prefixes()
                if Path(f"{prefix}.idx").exists()
            ]
        except (OSError, ValueError):
            return None
        whole = len(summaries) == len(self.options.json_keys)
        same = all(summary.get("job") == self.job for summary in summaries)
        return summaries if whole and same else None

    def execute(
        self, pool: WorkerPool, plan: EnginePlan | None, resume: bool | None
    ) -> list[dict[str, Any]]:
        """Read, tokenize, write, and name the files."""
        options = self.options
        checkpoints = options.checkpoint_interval > 0 and self.inputs.resumable
        with Output(
            options.prefix,
            options.dataset_prefixes(),
            self.dtype,
            self.job,
            overwrite=options.overwrite,
            interval=options.checkpoint_interval if checkpoints else None,
        ) as output:
            position = output.begin(resume)
            if output.engine == "hf":  # the interrupted run had reason not to use an engine
                plan = None
            output.engine = plan.engine if plan else "hf"
            position = self._feed(pool, plan, output, position)
            if output.num_tokens == 0 and options.num_shards > 1:
                logger.info("%s: this shard has no documents: it leaves no dataset", options.prefix)
                output.discard()
                self._note_empty_shard(output)
                return []
            for writer in output.writers:
                writer.prepare()
            if checkpoints:  # until every file has its name, the job counts as interrupted
                output.checkpoint(position)
            common = self._common_summary(output)
            common["job"] = self.job
            common["seconds"] = round(time.monotonic() - self._started, 3)
            summaries = [
                {**dataset_summary(writer, key), **common}
                for writer, key in zip(output.writers, options.json_keys, strict=True)
            ]
            output.commit(summaries)
            return summaries

    def _common_summary(self, output: Output) -> dict[str, Any]:
        versions = self._versions.result()
        return common_summary(self.options, self.tokenizer, self.inputs, output, versions)

    def _note_empty_shard(self, output: Output) -> None:
        """Leave summaries alone, by which merging knows that nothing is missing.

        A dataset that was there is one that `--overwrite` replaces.
        """
        common = self._common_summary(output)
        keys = self.options.json_keys
        for prefix, key in zip(self.options.dataset_prefixes(), keys, strict=True):
            idx_path(prefix).unlink(missing_ok=True)
            bin_path(prefix).unlink(missing_ok=True)
            write_summary(prefix, {"key": key, "documents": 0, "tokens": 0, **common})

    def _feed(
        self, pool: WorkerPool, plan: EnginePlan | None, output: Output, position: Position
    ) -> Position:
        """Send all items through the workers and write what comes back, in order.

        Returns the position after the last item.
        """
        sent: deque[Item] = deque()  # what their results need: the place, not the text

        sample: list[str] = []
        expected: Future[list[list[int]]] | None = None

        def payloads(begin: Position = position) -> Iterator[Payload]:
            if sample:
                yield Sample(sample)
            for item in self.inputs.items(begin):
                sent.append(replace(item, payload=Lines(b"", first=False)))
                yield item.payload

        with ExitStack() as stack:
            aside = stack.enter_context(ThreadPoolExecutor(2))  # while the workers start
            started = aside.submit(pool.start, make_encoder, (self._spec(plan),))
            if plan is not None:
                sample += [*probes(self.tokenizer.added_spellings), *self.inputs.sample()]
                expected = aside.submit(self._encode, sample)
            started.result()
            progress = stack.enter_context(
                ByteProgress(
                    self.inputs.total_bytes, self.options.progress, self.options.log_interval
                )
            )
            results = pool.map(payloads())
            stack.callback(results.close)
            if expected is not None:
                own = next(results).own
                assert own is not None
                ids = dict(zip(sample, expected.result(), strict=True))
                compare(own.texts, [ids[text] for text in own.texts], own.ids)
            self._versions = aside.submit(library_versions)
            for block in results:
                item = sent.popleft()
                if (own := block.own) is not None:  # a fast engine stays under watch
                    compare(own.texts, self.tokenizer.encode_batch(own.texts), own.ids)
                put_in_pending(block, self.tokenizer)
                before = output.num_tokens
                position = self._write(block, item, output, position)
                progress.update(item.read_bytes, output.num_tokens - before)
                limit = self.options.max_tokens
                if limit is not None and output.num_tokens >= limit:
                    break
                output.checkpoint_if_due(position)
        return position

    def _encode(self, texts: list[str]) -> list[list[int]]:
        ids = self.tokenizer.encode_batch(texts)
        return_freed_memory()  # loading the tokenizer took twice its size
        return ids

    def _write(
        self, block: EncodedBlock, item: Item, output: Output, position: Position
    ) -> Position:
        """Append one block; returns where the inputs go on."""
        lines = position.lines if item.file == position.file else 0
        before = lines
        if block.rejected:
            before += self._lines_before(item.file)
            if self.options.on_error == "stop":
                raise rejection(item, before, block.rejected[0])
        if self.options.max_tokens is not None:
            cut_to_tokens(block, self.options.max_tokens - output.num_tokens)
        output.add(block, item.path, before)
        return Position(item.file, item.end, lines + block.lines)

    def _spec(self, plan: EnginePlan | None) -> EncoderSpec:
        options = self.options
        return EncoderSpec(
            tokenizer=options.tokenizer(),
            engine=plan,
            keys=tuple(options.json_keys),
            eod=self.eod,
            vocab_size=self.tokenizer.vocab_size,
            dtype=self.dtype.name,
            stop=options.on_error == "stop",
            splitter=options.sentence_splitter if options.split_sentences else None,
            language=options.lang,
            keep_newlines=options.keep_newlines,
        )
