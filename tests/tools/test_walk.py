"""docs/walk.md shows the commands of examples/walk.sh, which lead to what the page says."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from safetensors import safe_open

from fixedcode_megatron.training.metrics_file import read_history

ROOT = Path(__file__).resolve().parents[2]
SCRIPT, PAGE = ROOT / "examples" / "walk.sh", ROOT / "docs" / "walk.md"
ITERATIONS, STOP_AT = 8, 4
MODEL = {
    "base": "quickstart.yaml",
    "vocab_size": 512,  # the quickstart's tokenizer; the walk's own has 8192 ids
    "code_bits": 12,
    "num_layers": 2,
    "hidden_size": 48,
    "num_attention_heads": 2,
    "ffn_hidden_size": 64,
    "seq_length": 32,
    "train_iters": ITERATIONS,
    "eval_interval": ITERATIONS,
    "eval_iters": 2,
    "log_interval": 1,
}


def test_the_page_shows_the_script():
    """With the defaults of its three variables, the script is what the page says, line by line."""
    script = SCRIPT.read_text(encoding="utf-8")
    defaults = dict(re.findall(r'"\$\{(\w+):=(\S+)\}"', script))
    assert sorted(defaults) == ["CONFIG", "STOP_AT", "TEXTS"]
    body = script.split("# 1. ", 1)[1]
    for name, value in defaults.items():
        body = re.sub(rf'"\${name}(.*?)"', rf'"{value}\1"', body).replace(f"${name}", value)
        body = re.sub(rf'"({value})"', r"\1", body)
    lines = ["# 1. " + body.splitlines()[0], *body.splitlines()[1:]]
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    shown = [line for block in blocks for line in block.splitlines()]
    assert [line for line in lines if line and not line.startswith("# ")] == shown
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert [line.removeprefix("# ") for line in lines if line.startswith("# ")] == headings


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """The folder in which the script was run at a small size, on the texts of seven modules."""
    clone = tmp_path_factory.mktemp("walk")
    for name in ("examples", "tools"):
        shutil.copytree(ROOT / name, clone / name)
    (clone / "examples" / "configs" / "small.yaml").write_text(yaml.safe_dump(MODEL))
    library = Path(os.__file__).parent
    (clone / "texts").mkdir()
    for name in ("argparse", "inspect", "typing", "tarfile", "subprocess", "decimal", "_pydecimal"):
        shutil.copy(library / f"{name}.py", clone / "texts" / f"{name}.txt")
    small = {"TEXTS": "texts", "CONFIG": "examples/configs/small.yaml", "STOP_AT": str(STOP_AT)}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "examples/walk.sh"],
        cwd=clone,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"} | small,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return clone, done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.distributed
def test_the_walk(walked):
    clone, printed = walked
    walk = clone / "runs" / "walk"
    # 1. Three models; the table is 512 rows of 48.
    report = json.loads((clone / "runs" / "quickstart" / "report.json").read_text())
    inputs = {model["interface"]: model["input_parameters"] for model in report["models"]}
    assert inputs == {"learned": 512 * 48, "binary": 0, "gf2": 0}
    # 3. The ids are 0 to 8191, each once.
    vocabulary = json.loads((walk / "tokenizer" / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(8192))
    # 4. Every document ends with id 0, and fewer tokens than bytes of text stand for them.
    tokens = (walk / "my_text_document.bin").read_bytes()
    ids = memoryview(tokens).cast("H").tolist()
    texts = list((clone / "texts").iterdir())
    assert ids.count(0) == len(texts) and ids[-1] == 0
    assert len(ids) < sum(text.stat().st_size for text in texts) / 3
    # 5 and 6. The run stopped half-way and came to its end, each iteration once, on two times
    # two ranks, and the model is the one that one process trained without a stop for step 8.
    assert (walk / "binary" / "latest_checkpointed_iteration.txt").read_text().strip() == "8"
    assert (walk / "binary" / f"iter_{STOP_AT:07d}").is_dir()
    assert f"continuing from runs/walk/binary/iter_{STOP_AT:07d}, iteration {STOP_AT}" in printed
    config = yaml.safe_load((walk / "binary" / "config.yaml").read_text())
    layout = (config["tensor_model_parallel_size"], config["pipeline_model_parallel_size"])
    assert layout == (2, 2) and config["sequence_parallel"]
    rows = {row["iteration"]: row for row in read_history(walk / "binary" / "metrics.jsonl").train}
    alone = walk / "compare" / "binary" / "metrics.jsonl"
    expected = {row["iteration"]: row for row in read_history(alone).train}
    assert list(rows) == list(expected) == list(range(1, ITERATIONS + 1))
    for i, row in rows.items():
        assert row["lm loss"] == pytest.approx(expected[i]["lm loss"], abs=1e-5)
        assert row["data checksum"] == expected[i]["data checksum"]
    # 7. All of V and no row of padding, the table holds the codes, and something was said.
    exported = json.loads((walk / "hf" / "config.json").read_text())
    assert (exported["vocab_size"], exported["hidden_size"]) == (8192, 48)
    with safe_open(walk / "hf" / "model.safetensors", "pt") as weights:
        table = weights.get_tensor("model.embed_tokens.weight")
    bits = [5 >> (i % 16) & 1 for i in range(48)]  # token 5 in 16 bits, three times
    assert table.shape == (8192, 48) and table[5].tolist() == bits
    said = printed.split("wrote runs/walk/hf", 1)[1].split("\n", 1)[1].split("  [1/2] learned")[0]
    assert len(said.strip()) > 20
    # 8. Both models; the table is 8192 rows of 48 larger.
    page = (walk / "compare" / "report.md").read_text()
    rows = re.findall(r"^\| - \| (learned|binary) \|.*\| ([\d,]+) \| [\d,]+ \|$", page, re.M)
    parameters = {name: int(count.replace(",", "")) for name, count in rows}
    assert parameters["learned"] - parameters["binary"] == 8192 * 48
