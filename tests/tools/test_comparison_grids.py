"""Grid files: what they are read as, what is refused in them, and what they become on a cluster."""

import os
import signal
from pathlib import Path

import pytest

from fixedcode_megatron.comparison.command import main
from fixedcode_megatron.comparison.grid import read_grid
from fixedcode_megatron.comparison.matched import OF_THE_LAUNCH
from fixedcode_megatron.comparison.runs import plan_runs
from fixedcode_megatron.config.tree import OPTIONS
from fixedcode_megatron.errors import UserError

GRIDS = Path(__file__).parents[2] / "examples" / "grids"


@pytest.fixture(autouse=True)
def _signals():
    """The tool's handler of SIGTERM is taken back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def write_grid(path, text):
    path.write_text(text)
    return path


def test_slurm_gets_a_command_for_each_missing_run(tmp_path, capsys):
    axes = "axes: {input_interface: [learned, gf2]}\n"
    grid = write_grid(
        tmp_path / "grid.yaml", f"config: quickstart\nfolder: {tmp_path}/a\nprocesses: 2\n{axes}"
        "slurm: {script: my.sbatch, options: --nodes=1 --time=2:00:00}\n",
    )  # fmt: skip
    assert main([str(grid), "--slurm"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    folder = f"{tmp_path}/a/learned"
    assert first == (
        f"sbatch --job-name=a-learned --export=ALL,RUN_FOLDER={folder}/checkpoints --nodes=1 "
        "--time=2:00:00 my.sbatch --config quickstart --input-interface learned "
        f"--run-dir {folder} --save {folder}/checkpoints --load {folder}/checkpoints"
    )
    assert "--job-name=a-gf2" in second
    assert main([str(grid), "--dry-run"]) == 0
    command = capsys.readouterr().out.splitlines()[1]
    assert command.startswith("python -m torch.distributed.run --standalone --nproc-per-node 2 -m")
    assert not (tmp_path / "a").exists()
    write_grid(grid, axes)
    assert main([str(grid), "--slurm", "--folder", str(tmp_path / "b")]) == 2


def test_submitted_runs_are_not_submitted_again(tmp_path, monkeypatch, capsys):
    for name, body in (("sbatch", "echo 17; echo $1 >> $LOG"), ("squeue", "echo $3 | grep 17")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    grid = write_grid(
        tmp_path / "grid.yaml",
        f"config: quickstart\nfolder: {tmp_path}/a\naxes: {{input_interface: [gf2]}}\n",
    )
    assert main([str(grid), "--submit"]) == 0
    assert capsys.readouterr().out == "gf2: job 17\n"
    assert main([str(grid), "--submit"]) == 0
    assert capsys.readouterr().out == "gf2: job 17 is in the queue already\n"
    assert (tmp_path / "log").read_text() == "--parsable\n"


@pytest.mark.parametrize("name", ["paper_a", "paper_b"])
def test_the_planner_tells_what_the_papers_grids_cost(name, capsys):
    assert main([str(GRIDS / f"{name}.yaml"), "--dry-run", "--folder", "no/such"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (title,) = [i for i, line in enumerate(lines) if line.split()[:2] == ["run", "GiB"]]
    rows = [line.split() for line in lines[title + 2 : -1]]
    assert len(rows) == {"paper_a": 28, "paper_b": 4}[name]
    assert rows[0][2] == {"paper_a": "17.1B", "paper_b": "100.0B"}[name]  # the papers' tokens
    assert rows[-1][0] == "all"
    hours = sum(float(row[-2].replace(",", "")) for row in rows[:-1])
    assert float(rows[-1][1].replace(",", "")) == pytest.approx(hours, abs=len(rows) / 2)


def test_settings_of_the_launch_are_settings():
    assert OPTIONS.keys() >= OF_THE_LAUNCH


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("axes: {seed: [1]}", "compare: None is no axis that can be compared"),
        ("axis: {lr: [1]}", "axis: no such key; did you mean axes?"),
        ("flags: --lr 1", "axes: missing"),
        ("axes: {lr: []}", "axis lr: has no values"),
        ("axes: {input_interfaces: [binary]}", "did you mean input_interface?"),
        ("axes: {lr: [1, 1]}", "axis lr: 1 stands there twice"),
        ("axes: {deep: {a b: --lr 1, ab: --lr 2}}", "two runs have the name ab"),
        ("axes: {lr: [1]}\nflags: --save x", "--save has no place in a grid"),
        ("axes: {lr: [1]}\nprocesses: none", "processes: none; give a whole number"),
        ("axes: {lr: [1]}\ncompare: seed", "compare: seed is no axis that can be compared"),
        ("- 1", "a grid holds `name: value` lines"),
        ("axes: [", "not valid YAML"),
    ],
)
def test_mistakes_in_a_grid(tmp_path, text, problem):
    path = write_grid(tmp_path / "grid.yaml", text)
    with pytest.raises(UserError) as error:
        read_grid(path)
    assert problem in str(error.value) and str(path) in str(error.value)


def test_values_of_an_axis_become_flags(tmp_path):
    axes = "{add_bias_linear: [true, false], code_bits: [null], adam_beta1: [0.5], "
    axes += "profile_ranks: [[0, 1]]}"
    grid = read_grid(write_grid(tmp_path / "grid.yaml", f"axes: {axes}\nflags: [--lr, 1]"))
    rest = "--code-bits none --adam-beta1 0.5 --profile-ranks 0 1".split()
    assert [list(cell.flags) for cell in grid.cells] == [
        ["--lr", "1", "--add-bias-linear", *rest],
        ["--lr", "1", "--no-add-bias-linear", *rest],
    ]
    assert grid.cells[0].name == "addbiaslinearTrue-codebitsNone-adambeta10.5-profileranks01"


def test_unknown_flags_are_named_once(tmp_path):
    path = write_grid(
        tmp_path / "grid.yaml",
        "config: quickstart\nflags: --train-iter 5\naxes: {seed: [1, 2], input_interface: [gf2]}",
    )
    with pytest.raises(UserError) as error:
        plan_runs(read_grid(path))
    assert str(error.value).count("--train-iter: no such flag; did you mean --train-iters?") == 1


def test_fine_tunings_have_the_names_of_their_base_models():
    names = [
        [cell.name for cell in read_grid(GRIDS / f"paper_a{end}.yaml").cells]
        for end in ("", "_sft")
    ]
    assert names[0] == names[1] and len(names[0]) == 27
