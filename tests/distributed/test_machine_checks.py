"""Folders, disks, traces and determinism of a run."""

from __future__ import annotations

import json

import pytest

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.training.checkpoint_files import whole_iterations
from fixedcode_megatron.training.folders import GIB, space_problem
from tests.distributed import machine_cases as cases
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

QUICK = "--eval-interval 100 --eval-iters 0 --lr-warmup-iters 0 --train-iters 4"


def log_of(run, rank=0):
    return (run.folder / f"rank{rank}.log").read_text()


def test_every_folder_is_tried_before_anything_is_built(train):
    run = train(f"{QUICK} --tensorboard-dir /dev/null/a --data-cache-path /dev/null/b", ranks=2)
    assert run.status == 2
    for flag in ("--tensorboard-dir /dev/null/a", "--data-cache-path /dev/null/b"):
        assert f"{flag} cannot be written to" in log_of(run)


@pytest.mark.parametrize(
    "flags",
    [
        "--use-distributed-optimizer",
        *(
            pytest.param(flags, marks=pytest.mark.slow)
            for flags in ("", "--bf16", "--no-save-optim --bf16")
        ),
    ],
)
def test_the_size_of_a_checkpoint_is_known_beforehand(train, base_flags, tmp_path, flags):
    """Within 3 %, and the 100 kB of what is not a tensor."""
    flags = f"{QUICK} --hidden-size 144 --ffn-hidden-size 576 --vocab-size 4000 {flags}"
    train(f"{flags} --train-iters 1 --save {tmp_path}", ranks=2)
    folder = tmp_path / "iter_0000001"
    assert whole_iterations(tmp_path) == [1]
    found = sum(path.stat().st_size for path in folder.iterdir())
    [expected, _] = run_ranks(2, cases.expected_checkpoint_bytes, [*base_flags, *flags.split()])
    assert expected < found < 1.03 * expected + 100_000


def test_the_number_of_parameters_does_not_depend_on_the_layout(base_flags):
    """Four layers of 41,616, the final norm 72, the head 512 x 72."""
    for flags in ("--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2", ""):
        found = run_ranks(2, cases.number_of_parameters, [*base_flags, *flags.split()])
        assert found == [203_400, 203_400]


def test_the_number_of_parameters_counts_each_expert_once(base_flags):
    """In each layer 4 experts of 3 x 72 x 96 and a router of 4 x 72 in place of one MLP."""
    mlp = 3 * 72 * 96
    argv = [*base_flags, *"--num-experts 4 --expert-model-parallel-size 2".split()]
    expected = 203_400 + 4 * (3 * mlp + 4 * 72)
    assert run_ranks(2, cases.number_of_parameters, argv) == [expected, expected]


def test_a_disk_that_is_too_small():
    with pytest.raises(UserError, match=r"2\.000 GiB, 1\.000 GiB are free"):
        space_problem("/ck", 2 * GIB, GIB, 3)
    warning = space_problem("/ck", 2 * GIB, 5 * GIB, 3)
    assert "the run keeps 3 of them" in warning and "--keep-last-checkpoints 1" in warning
    assert space_problem("/ck", 2 * GIB, 6 * GIB, 3) is None


def test_a_disk_that_is_full_is_found_at_start(base_flags, tmp_path):
    argv = [*base_flags, *f"{QUICK} --run-dir {tmp_path} --save {tmp_path / 'ck'}".split()]
    assert run_ranks(2, cases.with_full_disk, argv, output=tmp_path) == [2, 2]
    text = (tmp_path / "rank0.log").read_text()
    assert "a checkpoint takes about 0.002 GiB, 0.001 GiB are free" in text
    assert not (tmp_path / "metrics.jsonl").exists()


# Traces


def test_a_trace_holds_the_phases_of_the_iterations_asked_for(train, tmp_path):
    flags = "--profile --profile-step-start 1 --profile-step-end 3 --profile-ranks 1"
    save = f"--save {tmp_path} --save-interval 2"
    run = train(f"{QUICK} --use-pytorch-profiler {flags} {save}", ranks=2)
    [path] = (run.folder / "profile").iterdir()
    assert path.name == "rank1_iterations_2-3.json"
    events = json.loads(path.read_text())["traceEvents"]
    names = [e["name"] for e in events if e.get("cat") == "user_annotation"]
    found = {name: names.count(name) for name in names}
    assert {name: n for name, n in found.items() if name.startswith("iteration")} == {
        "iteration 2": 1,
        "iteration 3": 1,
    }
    assert found["forward-backward"] == found["optimizer"] == 2
    assert found["save"] == 1
    assert found["data"] == 4  # two micro-batches an iteration
    assert any(e["name"].startswith("aten::") for e in events)


def test_a_run_that_ends_within_the_window_leaves_its_trace(train):
    flags = "--profile --profile-step-start 1 --profile-step-end 100 --use-pytorch-profiler"
    run = train(f"{QUICK} --exit-interval 2 {flags}")
    assert [p.name for p in (run.folder / "profile").iterdir()] == ["rank0_iterations_2-2.json"]


# Determinism


def test_deterministic_runs_agree_bit_for_bit(base_flags, tmp_path):
    """Losses, weights and moments, with dropout."""
    found = []
    for name in "ab":
        flags = f"{QUICK} --deterministic-mode --hidden-dropout 0.1 --run-dir {tmp_path / name}"
        digests = run_ranks(2, cases.digest_of_the_end, [*base_flags, *flags.split()])
        rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").open()]
        found.append((digests, [(row["lm loss"], row["grad norm"]) for row in rows]))
    assert found[0] == found[1]
    assert len(found[0][1]) == 4


def test_what_deterministic_mode_sets(base_flags):
    [found] = run_ranks(1, cases.deterministic_settings, [*base_flags, "--deterministic-mode"])
    assert found == {
        "algorithms": True,
        "cudnn": (True, False),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
        "NCCL_ALGO": "Ring",
        "megatron-core": True,
    }


def test_deterministic_mode_refuses_contradictions(train):
    run = train(f"{QUICK} --deterministic-mode --cross-entropy-loss-fusion")
    assert run.status == 2
    assert "--cross-entropy-loss-fusion with --deterministic-mode" in log_of(run)
