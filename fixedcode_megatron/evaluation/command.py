"""`tools/evaluate_model.py`: a model's results on the harness's tasks."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.evaluation.suites import SUITES
from fixedcode_megatron.interop.command import check_device, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fixedcode_megatron.evaluation.tasks import LoadedTasks
    from fixedcode_megatron.interop.models import LoadedModel

_DESCRIPTION = """
Measure a model on tasks of EleutherAI's lm-evaluation-harness: a checkpoint of any parallel layout,
or a Hugging Face folder. Started with torchrun, the processes share a checkpoint's model (tensor
parallelism).
"""
_NEEDS = {
    "lm_eval": "'lm-eval>=0.4.13,<0.5'",
    "accelerate": "accelerate",
    "transformers": "transformers",
    "safetensors": "safetensors",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit status."""
    return run(_parser(), _evaluate, argv, needs=_NEEDS)


def _evaluate(options: argparse.Namespace) -> None:
    _check(options)
    with _processes(options) as (rank, size):
        tasks = None
        if rank == 0:
            from fixedcode_megatron.evaluation.tasks import LoadedTasks

            tasks = LoadedTasks(_names(options), options.include_path)
        from fixedcode_megatron.interop.models import is_folder

        results = (_with_folder if is_folder(options.load) else _with_checkpoint)(
            options, tasks, rank, size
        )
        if results is not None:
            _report(results, options)


def _check(options: argparse.Namespace) -> None:
    if options.suite is None and options.tasks is None:
        raise UserError("give --suite paper-b, --suite paper-a, or --tasks")
    if options.output is not None and not options.output.parent.is_dir():
        raise UserError(f"--output {options.output}: {options.output.parent} is no folder")
    limits = [
        ("--batch-size", options.batch_size, options.batch_size >= 1),
        ("--limit", options.limit, options.limit is None or options.limit >= 1),
        ("--num-fewshot", options.num_fewshot, (options.num_fewshot or 0) >= 0),
    ]
    if wrong := [f"{flag} {value}" for flag, value, fine in limits if not fine]:
        raise UserError(f"{', '.join(wrong)}: too small")


def _names(options: argparse.Namespace) -> list[str]:
    if options.tasks is not None:
        return list(dict.fromkeys(name for part in options.tasks for name in part.split(",")))
    return list(SUITES[options.suite].metrics)


@contextmanager
def _processes(options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Rank and number of the processes that torchrun started; sets the device of this one."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if size > 1 and options.device == "cuda":
        options.device = f"cuda:{os.environ['LOCAL_RANK']}"
    check_device(options.device)
    on_gpu = options.device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(options.device)
    if rank:
        logging.getLogger().setLevel(logging.WARNING)
    ours = size > 1 and not dist.is_initialized()
    if ours:  # the others wait while rank 0 loads data and encodes texts
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(days=1))
    try:
        yield rank, size
    finally:
        if ours:
            dist.destroy_process_group()


def _load(options: argparse.Namespace, rank: int, size: int) -> LoadedModel:
    from fixedcode_megatron.interop.models import load_model
    from fixedcode_megatron.interop.tensor_parallel import Share

    return load_model(
        options.load,
        step=options.ckpt_step,
        tokenizer_model=options.tokenizer_model,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
        share=Share(rank, size) if size > 1 else None,
    )


def _with_checkpoint(
    options: argparse.Namespace, tasks: LoadedTasks | None, rank: int, size: int
) -> Any:
    from fixedcode_megatron.evaluation.native_lm import NativeLM
    from fixedcode_megatron.evaluation.scoring import Scorer, Team

    loaded = _load(options, rank, size)
    team = Team(Scorer(loaded))
    if tasks is None:
        team.follow()
        return None
    try:
        return _simple_evaluate(NativeLM(loaded, team, options.batch_size), tasks, options)
    finally:
        team.dismiss()


def _with_folder(
    options: argparse.Namespace, tasks: LoadedTasks | None, rank: int, size: int
) -> Any:
    """Through the harness's own class for models of transformers."""
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoTokenizer

    from fixedcode_megatron.interop.hf_folder import RECORD

    loaded = _load(options, rank, size)
    where = options.tokenizer_model or options.load
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, local_files_only=True)
    except Exception as error:  # whatever transformers raises
        raise UserError(f"--tokenizer-model {where}: no tokenizer of transformers there") from error
    if len(tokenizer) > loaded.vocab_size:
        raise UserError(
            f"--tokenizer-model {where}: it has {len(tokenizer)} ids, the model {loaded.vocab_size}"
        )
    if tokenizer.eos_token_id is None and isinstance(loaded.eod, int):
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(loaded.eod)
    ours = (options.load / RECORD).is_file()
    lm = HFLM(
        pretrained=loaded.model,
        tokenizer=tokenizer,
        batch_size=options.batch_size,
        add_bos_token=False if ours else None,  # our models were trained without
    )
    return _simple_evaluate(lm, tasks, options)


def _simple_evaluate(lm: Any, tasks: Any, options: argparse.Namespace) -> Any:
    from lm_eval import simple_evaluate

    # Standard errors by resampling: its processes would be forked from threads, and may hang.
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        return simple_evaluate(
            lm,
            tasks=_names(options),
            task_manager=tasks,
            num_fewshot=options.num_fewshot,
            batch_size=options.batch_size,
            limit=options.limit,
            bootstrap_iters=1000,
            log_samples=False,
        )
    except ValueError as error:  # such as few-shot examples that a task does not have
        raise UserError(str(error)) from error


def _report(results: Any, options: argparse.Namespace) -> None:
    from fixedcode_megatron.evaluation.report import table, write_results

    print(table(results, options.suite, _names(options)), flush=True)
    if options.output is not None:
        asked = {name: getattr(options, name) for name in ("num_fewshot", "limit")}
        write_results(options.output, results, _model(options) | asked, options.suite)


def _model(options: argparse.Namespace) -> dict[str, Any]:
    """What was measured, for the record."""
    from fixedcode_megatron.interop.models import is_folder
    from fixedcode_megatron.interop.source import open_checkpoint

    if is_folder(options.load):
        return {"load": str(options.load)}
    source = open_checkpoint(options.load, options.ckpt_step)
    names = ("iteration", "input_interface", "vocab_size", "token_code", "tokenizer_fingerprint")
    return {"load": str(source.path)} | {name: source.common[name] for name in names}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="evaluate_model.py", description=_DESCRIPTION, allow_abbrev=False
    )
    add = parser.add_argument
    add("--load", required=True, type=Path, help="folder of checkpoints, one of them, or HF folder")
    add("--ckpt-step", type=int, help="iteration of the checkpoint [the newest]")
    add("--tokenizer-model", help="where the tokenizer lies [as in training]")
    add("--suite", choices=tuple(SUITES), help="the tasks of a paper, beside its results")
    add("--tasks", nargs="+", help="tasks of the harness, in place of the suite's")
    add("--include-path", type=Path, help="folder of tasks of your own (YAML, local data)")
    add("--num-fewshot", type=int, help="examples in each context [as the task says]")
    add("--limit", type=int, help="only so many documents of each task")
    add("--batch-size", type=int, default=8, help="[default: 8]")
    add("--device", default="cpu", help="such as cuda [default: cpu]")
    add("--output", type=Path, help="JSON file to write all results to")
    add("--trust-remote-code", action="store_true", help="run code that a foreign folder holds")
    return parser
