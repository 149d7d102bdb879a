"""Supervised fine-tuning: what is learned from, at any layout, and how a run goes on."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch

from tests.distributed import sft_cases
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

BYTES = "--tokenizer-type ByteLevelTokenizer --num-layers 2"
TUNE = (
    f"{BYTES} --sft --seq-length 96 --micro-batch-size 1 --global-batch-size 4 --train-iters 10 "
    "--lr-warmup-iters 0 --eval-interval 10 --eval-iters 100"
)


def log_of(run):
    return (run.folder / "rank0.log").read_text()


@pytest.fixture(scope="module")
def conversations(tmp_path_factory):
    """Two files of questions whose answer is the question's word three times."""
    folder, draw = tmp_path_factory.mktemp("conversations"), random.Random(4)
    for name, count in (("train", 60), ("valid", 21)):
        words = ["".join(draw.choices("abcd", k=draw.randint(2, 5))) for _ in range(count)]
        lines = [json.dumps({"prompt": f"{w}?", "response": f"{w} {w} {w}"}) for w in words]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def data(conversations):
    """The flags for these files; the prefix that the runs of other tests have is taken out."""
    return (
        f"--data-path none --train-data-path {conversations}/train.jsonl "
        f"--valid-data-path {conversations}/valid.jsonl"
    )


@pytest.fixture(scope="module")
def base(train, tmp_path_factory):
    """`base(interface)`: a folder with a short run's checkpoint, made on two pipeline stages."""
    folders = {}

    def get(interface):
        if interface not in folders:
            folder = folders[interface] = tmp_path_factory.mktemp("base")
            flags = f"{BYTES} --input-interface {interface} --train-iters 4 --lr-warmup-iters 0 "
            flags += f"--eval-iters 0 --pipeline-model-parallel-size 2 --save {folder}"
            assert train(flags, ranks=2, folder=folder).status == 0
        return folders[interface]

    return get


@pytest.fixture(scope="module")
def tuned(train, base, data):
    """A fine-tuning without interruption, on one rank."""
    return train(f"{TUNE} {data} --load {base('binary')} --finetune")


def test_the_answers_loss_falls(train, base, data, tuned, tmp_path):
    """From the base checkpoint's, as an evaluation alone says; on both sides of the file's end."""
    source = f"{TUNE} {data} --load {base('binary')} --finetune"
    before = train(f"{source} --skip-train --train-data-path none --no-sft-packing")
    [start], [end] = before.column("lm loss", "validation"), tuned.column("lm loss", "validation")
    assert end < start - 0.5
    [perplexity] = tuned.column("lm loss PPL", "validation")
    assert perplexity == pytest.approx(math.exp(end), rel=1e-6)
    assert "starting with the weights of" in log_of(tuned)
    assert "valid: 21 conversations with" in log_of(tuned)
    packed = train(f"{source} --skip-train --global-batch-size 3 --micro-batch-size 3")
    assert packed.column("lm loss", "validation") == pytest.approx([start], abs=1e-5)


@pytest.mark.parametrize("interface", ["learned", pytest.param("gf2", marks=pytest.mark.slow)])
def test_bases_of_other_interfaces(train, base, data, interface):
    flags = f"--load {base(interface)} --finetune --input-interface {interface} --train-iters 3"
    run = train(f"{TUNE} {data} {flags} --eval-iters 0")
    assert run.losses[-1] < run.losses[0]


@pytest.mark.parametrize(
    "layout",
    [
        "--tensor-model-parallel-size 2 --sequence-parallel",
        "--use-distributed-optimizer",
        pytest.param("--pipeline-model-parallel-size 2", marks=pytest.mark.slow),
        pytest.param("--context-parallel-size 2", marks=pytest.mark.slow),
    ],
)
def test_layouts_equal_one_rank(train, base, data, tuned, layout):
    run = train(f"{TUNE} {data} --load {base('binary')} --finetune {layout}", ranks=2)
    assert run.losses == pytest.approx(tuned.losses, abs=1e-5)
    assert run.column("data checksum") == tuned.column("data checksum")
    found, wanted = (r.column("lm loss", "validation") for r in (run, tuned))
    assert found == pytest.approx(wanted, abs=1e-5)


def test_the_same_command_goes_on_bit_for_bit(train, base, data, tuned, tmp_path):
    flags = f"{TUNE} {data} --pretrained-checkpoint {base('binary')} --save {tmp_path} "
    flags += f"--load {tmp_path} --hidden-dropout 0"
    first = train(f"{flags} --exit-interval 4")
    second = train(flags)
    assert first.column("iteration") == [1, 2, 3, 4]
    assert first.losses + second.losses == tuned.losses
    checksums = first.column("data checksum") + second.column("data checksum")
    assert checksums == tuned.column("data checksum")
    assert second.column("lm loss", "validation") == tuned.column("lm loss", "validation")
    assert "not those that this run has read" not in log_of(second)


def test_a_run_that_goes_on_in_other_conversations_says_so(train, base, data, tmp_path):
    longer = tmp_path / "train.jsonl"
    lines = [json.dumps({"prompt": f"{i}?", "response": "a"}) for i in range(9)]
    longer.write_text("\n".join(lines[:8]))
    flags = f"{TUNE} {data} --train-data-path {longer} --eval-iters 0 --train-iters 2 "
    flags += f"--pretrained-checkpoint {base('binary')} --save {tmp_path} --load {tmp_path}"
    assert train(f"{flags} --exit-interval 1").status == 0
    longer.write_text("\n".join(lines))
    assert "not those that this run has read so far" in log_of(train(flags))


def test_prompts_are_left_out_of_the_loss(base_flags, base, data):
    """Other prompt targets change no bit of loss and gradients; one answer target does."""
    argv = [*base_flags, *TUNE.split(), *data.split()]
    argv += ["--load", str(base("binary")), "--finetune"]
    [found] = run_ranks(1, sft_cases.gradients, argv)
    (loss, expected), (other_loss, other) = found["data"], found["prompts"]
    assert other_loss == loss
    assert all(torch.equal(other[name], expected[name]) for name in expected)
    answer_loss, other = found["answers"]
    assert answer_loss != loss
    assert not torch.equal(other["output_layer.weight"], expected["output_layer.weight"])
    unfused = [*argv, "--no-fused-linear-cross-entropy"]
    [(gradient, mask)] = run_ranks(1, sft_cases.head_input_gradients, unfused)
    assert gradient.shape[:2] == mask.shape
    assert torch.equal(gradient.abs().sum(-1) > 0, mask > 0)


def test_packed_conversations_do_not_see_each_other(base_flags, base, data):
    argv = [*base_flags, *TUNE.split(), *data.split(), "--no-fused-linear-cross-entropy"]
    argv += ["--load", str(base("binary")), "--finetune"]
    [pairs] = run_ranks(1, sft_cases.packed_and_alone, argv)
    assert len(pairs) > 4  # several a sample
    for packed, alone in pairs:
        torch.testing.assert_close(packed, alone, atol=1e-5, rtol=0)


def test_the_example_tunes_over_the_base_runs_configuration(
    base, base_flags, conversations, tmp_path
):
    """And then measures what it has made, as docs/sft.md says; nobody's files are written over."""
    source = base("binary")
    before = {path: path.read_bytes() for path in source.glob("*.*")}
    model = ["--config", str(source / "config.yaml"), "--config", "sft", "--seq-length", "96"]
    model += ["--max-position-embeddings", "96", "--global-batch-size", "4"]
    data = ["--valid-data-path", str(conversations / "valid.jsonl")]
    tune = [*model, *data, "--train-data-path", str(conversations / "train.jsonl"), "--train-iters"]
    tune += ["3", "--pretrained-checkpoint", str(source), "--pipeline-model-parallel-size", "1"]
    [status] = run_ranks(1, sft_cases.example_script, tune, str(tmp_path), output=tmp_path)
    assert status == 0
    assert {path: path.read_bytes() for path in source.glob("*.*")} == before
    metrics = (tmp_path / "runs" / "sft" / "metrics.jsonl").read_bytes()
    [tuned] = [row for row in map(json.loads, metrics.splitlines()) if row["kind"] == "validation"]
    measure = ["--config", "runs/sft/config.yaml", "--load", "runs/sft", "--skip-train", *data]
    [status] = run_ranks(1, sft_cases.example_script, measure, str(tmp_path), output=tmp_path)
    assert status == 0
    assert (tmp_path / "runs" / "sft" / "metrics.jsonl").read_bytes() == metrics
    [found] = (tmp_path / "runs" / "sft_measured" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(found) == tuned


def test_ranks_that_read_different_files_are_refused(base_flags, tmp_path):
    for rank, answer in enumerate(("a", "b")):
        record = {"prompt": "q", "response": answer}
        (tmp_path / f"{rank}.jsonl").write_text(json.dumps(record) + "\n")
    argv = [*base_flags, *TUNE.split(), "--data-path", "none", "--run-dir", str(tmp_path / "run")]
    statuses = run_ranks(2, sft_cases.with_files_of_its_own, argv, str(tmp_path), output=tmp_path)
    assert statuses == [2, 2]
    assert "rank 1 reads other conversations" in (tmp_path / "rank0.log").read_text()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--train-data-path 0.5 {train}", ["--train-data-path 0.5", "takes no weights"]),
        ("--train-data-path {corpus}", ["not indexed datasets"]),
        ("--train-data-path {train}.gone", ["train.jsonl.gone: cannot be read"]),
        ("--train-data-path none", ["--train-data-path: missing", "docs/sft.md"]),
        ("--sft-tokenizer-prompt-format nemotron-h-aligned", ["beside the tokenizer"]),
        ("--prepare-data python-library", ["makes no conversations"]),
        ("--transformer-impl transformer_engine", ["--no-sft-packing"]),
    ],
)
def test_mistakes(train, data, data_prefix, conversations, flags, words):
    names = dict(train=conversations / "train.jsonl", corpus=data_prefix)
    run = train(f"{TUNE} {data} {flags.format(**names)}")
    assert run.status == 2
    for word in words:
        assert word in log_of(run)
