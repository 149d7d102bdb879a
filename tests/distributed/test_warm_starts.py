"""New runs from the weights of old ones: our own, of another input, Megatron-LM's."""

from __future__ import annotations

import json

import pytest
import torch

from fixedcode_megatron.training.checkpoint_files import TRACKER, whole_iterations
from fixedcode_megatron.training.checkpoint_integrity import damage
from tests.distributed import checkpoint_cases, stock_checkpoints
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

QUICK = "--eval-iters 0 --lr-warmup-iters 0 --train-iters 4"
CHANGE = "--allow-input-interface-change"
TABLE = "embedding.word_embeddings.weight"


def log_of(run):
    return (run.folder / "rank0.log").read_text()


@pytest.fixture(scope="module")
def pretrained(train, tmp_path_factory):
    """`pretrained(interface)`: a folder with a checkpoint of a short run."""
    folders = {}

    def get(interface):
        if interface not in folders:
            folder = folders[interface] = tmp_path_factory.mktemp("pretrained")
            train(f"{QUICK} --input-interface {interface} --save {folder}")
        return folders[interface]

    return get


@pytest.fixture
def start(base_flags):
    """`start(flags)`: the parameters that a run with these flags begins with."""

    def get(flags):
        argv = [*base_flags, *QUICK.split(), *flags.split()]
        [weights] = run_ranks(1, checkpoint_cases.weights_at_start, argv)
        return weights

    return get


def trained(path):
    """Weights of a checkpoint by key, read by torch alone."""
    [tensors] = run_ranks(1, checkpoint_cases.plain_tensors, str(path))
    return {key: value for key, value in tensors.items() if not key.startswith("optimizer.")}


def test_the_same_command_starts_a_fine_tuning_and_continues_it(train, pretrained, tmp_path):
    """Where --finetune would start over at every launch, --pretrained-checkpoint goes on."""
    source = pretrained("binary")
    before = sorted(path.name for path in source.rglob("*"))
    straight = train(f"{QUICK} --load {source} --finetune")
    own = f"--save {tmp_path} --load {tmp_path} --keep-last-checkpoints 1"
    flags = f"{QUICK} --pretrained-checkpoint {source} {own}"
    first = train(f"{flags} --exit-interval 2")
    second = train(flags)
    assert straight.column("iteration") == [1, 2, 3, 4]
    assert first.losses + second.losses == straight.losses
    assert "starting with the weights of" in log_of(first)
    assert "continuing from" in log_of(second)
    assert whole_iterations(tmp_path) == [4]
    assert sorted(path.name for path in source.rglob("*")) == before


@pytest.mark.parametrize(
    "flags, words",
    [
        ("--pretrained-checkpoint {none}", ["--pretrained-checkpoint", "does not exist"]),
        ("--pretrained-checkpoint {source} --save {source}", ["give the new run another --save"]),
        (
            "--pretrained-checkpoint {source} --ckpt-step 4 --load {source}",
            ["--ckpt-step with --pretrained-checkpoint", "iter_0000004"],
        ),
        ("--load {source} --finetune --input-interface gf2", [CHANGE, "binary", "gf2"]),
        ("--load {source} --finetune --code-shift 3", [CHANGE, "another token code"]),
        ("--load {source} --input-interface gf2 " + CHANGE, ["--finetune", "does nothing"]),
        ("--load {source} --finetune --vocab-size 501", ["vocabulary of 500 ids", "501"]),
    ],
)
def test_what_is_refused(train, pretrained, tmp_path, flags, words):
    names = dict(source=pretrained("binary"), none=tmp_path / "none")
    run = train(f"{QUICK} {flags.format(**names)}")
    assert run.status == 2
    for word in words:
        assert word in log_of(run)
    assert not (run.folder / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    "old, new",
    [
        ("learned", "binary"),
        ("binary", "learned"),
        pytest.param("learned", "lowdim", marks=pytest.mark.slow),
        pytest.param("binary", "gf2", marks=pytest.mark.slow),
    ],
)
def test_all_but_the_input_table_is_taken(start, pretrained, old, new):
    """Another interface on request: a table that is there stays as a fresh run draws it."""
    source = pretrained(old)
    fresh = start(f"--input-interface {new}")
    warm = start(f"--input-interface {new} --load {source} --finetune {CHANGE}")
    [own, copied] = [
        {name for name in fresh if name.startswith("embedding.") == is_input}
        for is_input in (True, False)
    ]
    assert bool(own) == (new in ("learned", "lowdim"))
    assert all(torch.equal(warm[name], fresh[name]) for name in own)
    there = trained(source / "iter_0000004")
    assert (TABLE in there) == (old == "learned")
    for name in copied:
        assert torch.equal(warm[name], value_of(there, name)), name
        assert not torch.equal(warm[name], fresh[name]), name


def value_of(tensors, name):
    """A parameter's value in a checkpoint, where the layers of one kind are stacked."""
    if not name.startswith("decoder.layers."):
        return tensors[name]
    _, _, layer, rest = name.split(".", 3)
    return tensors[f"decoder.layers.{rest}"][int(layer)]


def test_megatron_lms_checkpoint_starts_a_run_here(base_flags, start, tmp_path):
    """Saved at TP 2, loaded at TP 1: QKV, gated MLP and table come out as they went in."""
    argv = [*base_flags, "--input-interface", "learned"]
    run_ranks(2, stock_checkpoints.save, [*argv, "--tensor-model-parallel-size", "2"], tmp_path)
    [expected] = run_ranks(1, stock_checkpoints.save, argv, tmp_path / "one")
    weights = start(f"--input-interface learned --pretrained-checkpoint {tmp_path}")
    for name, value in expected.items():
        assert torch.equal(weights[renamed(name)], value), name
    assert len(weights) == len(expected)
    fixed = start(f"--input-interface binary --load {tmp_path} --finetune {CHANGE}")
    assert set(weights) - set(fixed) == {TABLE}
    assert all(torch.equal(fixed[name], weights[name]) for name in fixed)


def renamed(name):
    """Megatron-core's local layers have their norms outside of the linear ones."""
    return name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_").replace(
        "pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"
    )


def test_megatron_lms_checkpoint_is_not_gone_on_with(train, base_flags, tmp_path):
    run_ranks(1, stock_checkpoints.save, [*base_flags, "--input-interface", "learned"], tmp_path)
    for flags, word in [
        ("", "--pretrained-checkpoint in place of --load"),
        ("--finetune --ffn-hidden-size 80", "--ffn-hidden-size: 96 in the checkpoint, 80 here"),
        ("--finetune --no-swiglu", "--swiglu: True in the checkpoint, False here"),
    ]:
        run = train(f"{QUICK} --input-interface learned --load {tmp_path} {flags}")
        assert run.status == 2
        assert word in log_of(run)


def test_megatron_lm_reads_our_checkpoints(train, base_flags, tmp_path):
    """Saved at TP 2 with the distributed optimizer, read by Megatron-LM at TP 1."""
    train(
        f"{QUICK} --input-interface learned --tensor-model-parallel-size 2 --save {tmp_path} "
        "--use-distributed-optimizer --verify-integrity",
        ranks=2,
    )
    assert (tmp_path / TRACKER).read_text() == "4\n"
    argv = [*base_flags, "--input-interface", "learned"]
    [weights] = run_ranks(1, stock_checkpoints.load, argv, tmp_path)
    there = trained(tmp_path / "iter_0000004")
    for name, value in weights.items():
        assert torch.equal(value, value_of(there, renamed(name))), name


def test_our_checksums_are_megatron_lms(train, tmp_path):
    """megatron-core's own check (from 0.18 on) accepts them, and finds a changed byte."""
    train(f"{QUICK} --save {tmp_path} --verify-integrity")
    path = tmp_path / "iter_0000004"
    record = json.loads((path / "integrity.json").read_text())
    assert set(record["files"]) == {p.name for p in path.iterdir()} - {"integrity.json"}
    [problem] = run_ranks(1, stock_checkpoints.integrity_problem, path)
    assert problem is None
    data = bytearray((path / "__0_0.distcp").read_bytes())
    data[100] ^= 1
    (path / "__0_0.distcp").write_bytes(data)
    [problem] = run_ranks(1, stock_checkpoints.integrity_problem, path)
    if stock_checkpoints.HAS_MEGATRON_LM:
        assert "__0_0.distcp: hash mismatch" in problem
    assert "__0_0.distcp has changed" in (damage(path, checksums=True) or "")
