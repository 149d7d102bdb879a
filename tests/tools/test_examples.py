"""The example scripts start the same program under bash, Python, and torchrun both ways."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from fixedcode_megatron.config import parse_args

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FIXED, LEARNED = EXAMPLES / "pretrain_fixedcode.sh", EXAMPLES / "pretrain_learned.sh"
SFT = EXAMPLES / "sft.sh"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def run(tmp_path: Path, *command: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        [str(word) for word in command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def printed(result: subprocess.CompletedProcess[str]) -> dict:
    assert result.returncode == 0, result.stderr
    return yaml.safe_load(result.stdout)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_runs_the_preset_with_the_users_flags_on_top(tmp_path):
    found = printed(run(tmp_path, "bash", FIXED, "--print-config", "--lr", "0.5"))
    preset = "paper_b_1.7b" if torch.cuda.is_available() else "quickstart"
    wanted = parse_args(["--config", preset, "--lr", "0.5"]).to_dict()
    wanted |= dict.fromkeys(("save", "load", "run_dir"), "runs/pretrain_fixedcode")
    assert found == wanted
    assert found["input_interface"] == "binary"


def test_torchrun_starts_it_with_python(tmp_path):
    found = printed(run(tmp_path, *TORCHRUN, LEARNED, "--print-config", "--save", "mine"))
    assert found["input_interface"] == "learned"
    assert (found["save"], found["load"]) == ("mine", None)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_torchrun_without_python_and_a_preset_of_ones_own(tmp_path):
    result = run(
        tmp_path,
        *(*TORCHRUN, "--no-python", "--nproc-per-node", "2", FIXED),
        *("--print-config", "--config", "paper_a_9layers", "--input-interface", "gf2"),
    )
    assert result.returncode == 0, result.stderr
    assert "num_layers: 9" in result.stdout and "input_interface: gf2" in result.stdout


def test_mistakes_end_without_a_traceback(tmp_path):
    result = run(tmp_path, sys.executable, FIXED, "--hiden-size", "8")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("error: --hiden-size: no such flag")
    assert "Traceback" not in result.stderr


def test_the_twins_differ_in_interface_and_folder_alone():
    def code(script: Path) -> list[str]:
        return [line for line in script.read_text().splitlines() if not line.startswith("#")]

    pairs = zip(code(FIXED), code(LEARNED), strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1]] == [
        ('INPUT_INTERFACE = "binary"', 'INPUT_INTERFACE = "learned"'),
        ('FOLDER = "runs/pretrain_fixedcode"', 'FOLDER = "runs/pretrain_learned"'),
    ]


def test_fine_tuning_needs_a_base(tmp_path):
    result = run(tmp_path, sys.executable, SFT, "--train-data-path", "my.jsonl")
    assert result.returncode == 2 and "--pretrained-checkpoint: missing" in result.stdout
