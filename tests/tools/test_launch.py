"""Launching: torchrun in three ways, Slurm scripts, the report, the GPU check."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fixedcode_megatron import env_report
from fixedcode_megatron.data.indexed import IndexedDatasetWriter
from fixedcode_megatron.planning import graph_check

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "pretrain_fixedcode.sh"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
TINY = (
    "--config quickstart --num-layers 2 --hidden-size 48 --num-attention-heads 2 "
    "--ffn-hidden-size 64 --seq-length 16 --vocab-size 512 --code-bits 12 --train-iters 2 "
    "--eval-iters 0 --log-interval 1 --tokenizer-type NullTokenizer --micro-batch-size 1 "
    "--global-batch-size 8 --split 90,10,0"
)
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


def run(*command, cwd, timeout=300, **environment):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("data") / "corpus"
    random = np.random.default_rng(0)
    with IndexedDatasetWriter(prefix, np.uint16) as writer:
        for _ in range(40):
            writer.add_document(random.integers(0, 511, 60).tolist())
        writer.commit()
    return prefix


def iterations(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row["iteration"] for row in map(json.loads, lines) if row["kind"] == "train"]


@needs_bash
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("launcher", "environment"),
    [
        (["--nproc-per-node", "2"], {}),
        (["--no-python", "--nproc-per-node", "2"], {}),
        # As the container sets it: as many ranks as there are GPUs, or CPUs where there is none.
        ([], {"PET_NPROC_PER_NODE": "auto"}),
    ],
    ids=["python", "no-python", "auto"],
)
def test_torchrun_trains_to_the_end(tmp_path, data, launcher, environment):
    if environment and (os.cpu_count() or 1) not in (1, 2, 4, 8):
        pytest.skip(f"the global batch of 8 does not split over {os.cpu_count()} ranks")
    flags = [*TINY.split(), "--data-path", data, "--save", "run", "--load", "run"]
    result = run(*TORCHRUN, *launcher, SCRIPT, *flags, cwd=tmp_path, **environment)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    assert iterations(tmp_path / "run") == [1, 2]
    assert (tmp_path / "run" / "latest_checkpointed_iteration.txt").read_text().strip() == "2"


@pytest.fixture
def slurm(tmp_path):
    """`slurm(iteration, status)`: submit with a torchrun that reaches an iteration and exits."""
    tools = tmp_path / "bin"
    tools.mkdir()
    scripts = {
        "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
        "scontrol": 'if [[ $1 == show ]]; then echo node7; else echo "$@" >>requeued; fi',
        "torchrun": 'echo "$@" >arguments; mkdir -p runs/job; '
        'echo "$REACHES" >runs/job/latest_checkpointed_iteration.txt; exit "$STATUS"',
    }
    for name, text in scripts.items():
        (tools / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tools / name).chmod(0o755)

    def submit(script, iteration, status, **variables):
        return run(
            *("bash", ROOT / "examples" / "slurm" / script, "--lr", "1e-4"),
            cwd=tmp_path,
            PATH=f"{tools}:{os.environ['PATH']}",
            SLURM_JOB_ID="12",
            SLURM_JOB_NAME="job",
            SLURM_JOB_NODELIST="node[7-8]",
            SLURM_NNODES="2",
            REACHES=str(iteration),
            STATUS=str(status),
            **variables,
        )

    return submit


@needs_bash
@pytest.mark.parametrize("script", ["pretrain_one_node.sbatch", "pretrain_many_nodes.sbatch"])
def test_slurm_jobs_come_back_as_long_as_they_get_further(slurm, tmp_path, script):
    requeued = tmp_path / "requeued"
    assert slurm(script, 10, 0, EXIT_MINUTES="0").returncode == 0  # its time was up
    assert requeued.read_text() == "requeue 12\n"
    assert slurm(script, 20, 1).returncode == 1  # a crash after another checkpoint
    assert requeued.read_text() == "requeue 12\n" * 2
    slurm(script, 20, 0)  # nothing was left to train
    slurm(script, 30, 2)  # a mistake in the flags
    assert slurm(script, 40, 0).returncode == 0  # the run is complete
    assert requeued.read_text() == "requeue 12\n" * 2
    arguments = (tmp_path / "arguments").read_text()
    assert "--save runs/job --load runs/job --exit-duration-in-mins 1425 --lr 1e-4" in arguments
    if "many" in script:
        assert "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint node7:29500" in arguments


@needs_bash
def test_paper_a_covers_its_grid(slurm, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    seen = set()
    for task in range(18):
        slurm("paper_a.sbatch", 1, 0, SLURM_ARRAY_TASK_ID=str(task))
        words = (tmp_path / "arguments").read_text().split()
        seen.add(
            tuple(words[words.index(f) + 1] for f in ("--config", "--input-interface", "--seed"))
        )
    presets = ("paper_a_9layers", "paper_a_16layers", "paper_a_537m")
    assert seen == {
        (preset, interface, seed)
        for preset in presets
        for interface in ("learned", "binary")
        for seed in ("1234", "2345", "3456")
    }


def test_report_names_what_is_missing_and_how_to_get_it(capsys, monkeypatch):
    rows = (
        ("json", "numpy", "everything", "pip install numpy", True),
        ("no_such_module", "no-such", "a feature", "pip install no-such", False),
        ("no_such_base", "base", "training", "pip install base", True),
    )
    monkeypatch.setattr(env_report, "_PACKAGES", rows[:2])
    assert env_report.main([]) == 0
    printed = capsys.readouterr().out
    assert "no-such                 missing" in printed
    assert "needed for: a feature" in printed and "pip install no-such" in printed
    monkeypatch.setattr(env_report, "_PACKAGES", rows)
    assert env_report.main(["--json"]) == 1
    found = json.loads(capsys.readouterr().out)["packages"]
    assert [f["state"] for f in found] == ["ok", "missing", "missing"]


def test_report_tells_broken_from_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_binary.py").write_text("raise ImportError('x.so: undefined symbol: _Z1')")
    (tmp_path / "needs_more.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    broken = env_report._package("broken_binary", "b", "x", "y", False)
    assert broken.state == "broken" and "built for another torch than" in broken.detail
    partial = env_report._package("needs_more", "n", "x", "y", False)
    assert (partial.state, "no_such_dependency" in partial.detail) == ("broken", True)
    # A folder of the same name is no package: what is in it is absent, and nothing is broken.
    (tmp_path / "half_a_package").mkdir()
    half = env_report._package("half_a_package.core", "h", "x", "y", False)
    assert (half.state, half.detail) == ("missing", "")


def test_report_survives_a_torch_that_cannot_be_imported(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libc10.so: cannot open shared object')")
    report = ("-m", "fixedcode_megatron.env_report", "--json")
    path = f"{tmp_path}:{ROOT}"
    result = run(sys.executable, *report, cwd=tmp_path, PYTHONPATH=path)
    assert result.returncode == 1, result.stderr[-2000:]
    found = json.loads(result.stdout)
    # Not a word of another torch: this is the one.
    reason = "libc10.so: cannot open shared object"
    assert found["machine"]["torch"] == reason
    states = {row["name"]: (row["state"], row["detail"]) for row in found["packages"]}
    assert states["torch"] == ("broken", reason)
    assert states["numpy"][0] == "ok"


def test_a_driver_without_its_tool_is_reported(monkeypatch):
    monkeypatch.setattr(env_report.shutil, "which", lambda _name: None)
    monkeypatch.setattr(env_report.ctypes.util, "find_library", lambda _name: "libcuda.so.1")
    assert "nvidia-smi is not" in env_report._why_no_gpu("12.8")


def test_gpu_check_rehearses_its_training_steps(tmp_path):
    results = tmp_path / "r.json"
    command = ("-m", "fixedcode_megatron.planning.gpu_check", "--device", "cpu", "--rounds", "1")
    result = run(sys.executable, *command, "--steps", "1", "--json", results, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(results.read_text())
    assert list(found["variants"]) == ["learned", "binary", "binary+fold"]
    memory = {name: row["memory_bytes"] for name, row in found["variants"].items()}
    # The table: 1024 rows of 128, 2 bytes as parameters, 12 as optimizer state.
    difference = memory["learned"]["optimizer"] - memory["binary"]["optimizer"]
    assert difference == 12 * 1024 * 128
    assert memory["binary"]["parameters"] == memory["binary+fold"]["parameters"]


def test_gpu_check_compares_losses_with_and_without_graphs():
    command = ("-m", "fixedcode_megatron.planning.graph_check", "--device", "cpu", "--steps", "5")
    result = run(sys.executable, *command, cwd=ROOT)  # rehearsed without graphs
    assert result.returncode == 0, result.stderr[-2000:]
    assert "ok: losses of 5 steps differ by 0.0e+00" in result.stdout
    # 3 against 2 is half as much again; two equal runs leave room for rounding, no more.
    assert graph_check.largest_difference([4.0, 2.0], [4.0, 3.0]) == 0.5
    assert graph_check.agree(0.0, 5e-5) and not graph_check.agree(0.0, 2e-4)
    assert graph_check.agree(1e-3, 2e-3) and not graph_check.agree(1e-3, 5e-3)
    assert not graph_check.agree(0.0, graph_check.largest_difference([4.0], [float("nan")]))


def test_container_leaves_torch_alone():
    lines = (ROOT / "constraints" / "container.txt").read_text().splitlines()
    names = {line.split(">")[0].split("=")[0].strip() for line in lines if line[0] != "#"}
    assert not names & {"torch", "transformer-engine", "flash-attn", "apex", "triton", "numpy"}
    text = (ROOT / "Dockerfile").read_text()
    assert "diff /opt/torch-of-the-image" in text and "PET_NPROC_PER_NODE=auto" in text
