"""Every command of the README and the documentation: run at a small size, or checked as far as this
machine can, by the test that runs the same program where there is one. A new one needs an entry."""

import glob
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from packaging.requirements import Requirement

from fixedcode_megatron.config.cli import read
from fixedcode_megatron.data.bpe import train_byte_level_bpe

ROOT = Path(__file__).parents[2]
# docs/walk.md is run from top to bottom by test_walk.py.
DOCS = sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "walk.md")
PAGES = [ROOT / "README.md", ROOT / "kernels" / "README.md", *DOCS]
PROGRAMS = (
    r"(?:python|bash|torchrun|make|pip|docker|sbatch|srun|find|PYTHON=\S+|\.venv/bin/python) "
)
SHAPE = (
    "--vocab-size 384 --code-bits 16 --num-layers 2 --hidden-size 32 --num-attention-heads 2 "
    "--ffn-hidden-size 48 --seq-length 16 --max-position-embeddings 16 --micro-batch-size 1 "
    "--global-batch-size 2"
)
MODEL = SHAPE + " --train-iters 2 --lr-warmup-fraction 0 --eval-iters 1 --eval-interval 2"


def commands():
    """``(page, command)`` of every code block, continued lines joined, comments cut off."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        shells = "\n".join(block for language, block in fences if language in ("", "bash", "sh"))
        rest = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        for line in [*shells.splitlines(), *re.findall(r"^ {4,}(\S.*)$", rest, re.MULTILINE)]:
            if re.match(PROGRAMS, line.strip()):
                words = re.split(r"\s{2,}(?:#|\d )|\s#", line.strip())[0]
                found.append((str(page.relative_to(ROOT)), " ".join(words.split())))
    return found


def shell(command, folder, status=0):
    """Run a command in a folder, with this Python's programs first in its way."""
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False,
        env={"PATH": path, "HOME": str(folder), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with what the pages speak of: texts, tokenizers, a dataset, a trained model."""
    folder = tmp_path_factory.mktemp("world")
    for name in ("tools", "examples", "benchmarks", "tests", "kernels", "Makefile"):
        (folder / name).symlink_to(ROOT / name)
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    train_byte_level_bpe(iter(texts), 384, folder / "smollm2" / "tokenizer.json", progress=False)
    for name in ("my_tokenizer", "gpt2"):
        shutil.copytree(folder / "smollm2", folder / name)
    documents = [{"text": part} for text in texts for part in text.split("\n\n")]
    lines = "".join(json.dumps(document) + "\n" for document in documents)
    (folder / "corpus").mkdir()
    (folder / "corpus.jsonl").write_text(lines)
    packed = zstandard.compress(lines.encode())
    (folder / "corpus" / "part.jsonl.zst").write_bytes(packed)
    shell(
        "python tools/preprocess_data.py --input corpus --output-prefix my --append-eod "
        "--tokenizer-model my_tokenizer",
        folder,
    )
    shell(
        f"bash examples/pretrain_fixedcode.sh --config quickstart {MODEL} --data-path "
        "my_text_document --tokenizer-model my_tokenizer --prepare-data none --save runs/my-run",
        folder,
    )
    return folder


def run(more="", swap=("", "")):
    """Run it, with flags that make it small."""

    def check(command, world):
        small = command.replace(*swap) if swap[0] else command
        assert small != command or not swap[0], f"{swap[0]!r} is not in {command!r}"
        shell(f"{small} {more}", world)

    return check


def proven_by(test):
    """That a test of that name runs the same program."""
    path, name = test.split("::")

    def check(_command, _world):
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")

    return check


def flags_are_known(command, _world):
    """Training flags: each is one that the program has (`...` stands for the user's)."""
    for stand_in in ("--data-path ...", "--tokenizer-model ..."):
        command = command.replace(stand_in, stand_in.replace("...", "x"))
    command = command.replace("BASE/config.yaml", "quickstart").replace(
        "runs/sft/config.yaml", "sft"
    )
    words = shlex.split(command.removesuffix(" ..."))
    first = next(i for i, word in enumerate(words) if re.search(r"\.(sh|sbatch|py)$", word)) + 1
    assert read(words[first:])[1] == []


def two_shards(command, world):
    small = command.removeprefix("srun ").replace("--num-shards 64", "--num-shards 2")
    assert small != command and "--num-shards 2 " in small
    shell(f"for SLURM_ARRAY_TASK_ID in 0 1; do {small}; done", world)


def make_knows(command, _world):
    shell(f"make -n PYTHON={sys.executable} {command.split()[1]}", ROOT)


def can_be_installed(command, _world):
    for word in shlex.split(command)[2:]:
        assert word.startswith("-") or (word == "." or Requirement(word)), word


def names_tests(command, _world):
    words = shlex.split(command)
    paths = [word for word in words if word.startswith("tests/")]
    assert paths and all(glob.glob(str(ROOT / path)) for path in paths), command


def all_of(*checks):
    def check(command, world):
        for one in checks:
            one(command, world)

    return check


LAUNCH = "tests/tools/test_launch.py::"
EVALUATION = "tests/tools/test_evaluate_model.py::"
# The first entry that a command begins with counts.
CHECKS = {
    "make ": make_knows,
    "pip install ": can_be_installed,
    "python -m pytest ": names_tests,
    # README: eight ranks become two of a small model.
    "torchrun --nproc-per-node 8 examples/pretrain_fixedcode.sh": run(
        MODEL, ("--nproc-per-node 8", "--nproc-per-node 2")
    ),
    # GPUs, containers, clusters.
    "bash tools/gpu_check.sh": proven_by(LAUNCH + "test_gpu_check_rehearses_its_training_steps"),
    "PYTHON=/path/to/python bash tools/gpu_check.sh": proven_by(
        LAUNCH + "test_gpu_check_rehearses_its_training_steps"
    ),
    "docker ": proven_by(LAUNCH + "test_container_leaves_torch_alone"),
    "sbatch examples/slurm/paper_a.sbatch": proven_by(LAUNCH + "test_paper_a_covers_its_grid"),
    "sbatch ": all_of(
        flags_are_known, proven_by(LAUNCH + "test_slurm_jobs_come_back_as_long_as_they_get_further")
    ),
    # Benchmarks.
    "python -m fixedcode_kernels.benchmark": run(
        "--dtypes fp32 --tokens 64 --hidden-size 64 --vocab-size 1024 --seconds 0.05"
    ),
    "python benchmarks/preprocess.py": all_of(
        run("--help"), proven_by("tests/tools/test_preprocess_benchmark.py::test_small_run")
    ),
    "python benchmarks/dataset_tools.py": run("--tokens 1e5"),
    "python benchmarks/sample_index.py": run("--documents 1e3 --seq-length 64"),
    "python benchmarks/train_step.py": run(
        "--vocab-size 512 --hidden-size 36 --ffn-hidden-size 48 --num-layers 1 "
        "--num-attention-heads 2 --seq-length 32 --batch-size 1 --rounds 1 --steps 1"
    ),
    # Data; what comes from the Hugging Face hub is parsed alone (tests/unit/test_data_docs.py).
    "python tools/preprocess_data.py --hf-dataset": proven_by(
        "tests/unit/test_data_docs.py::test_command"
    ),
    "python tools/preprocess_data.py": run(),
    "srun python tools/preprocess_data.py": two_shards,
    "python tools/inspect_dataset.py data/web_text_document --documents": run(
        swap=("0 1000 -1", "0 10 -1")
    ),
    "python tools/inspect_dataset.py": run(),
    "python tools/split_dataset.py --input data/web": run(swap=("--valid 0.001", "--valid 0.2")),
    "python tools/blend.py --train-data-path data/web": run(),
    "python tools/merge_datasets.py": run("--overwrite"),
    "python tools/split_dataset.py": proven_by("tests/unit/test_data_docs.py::test_command"),
    "python tools/blend.py": proven_by("tests/unit/test_data_docs.py::test_command"),
    "python tools/build_sample_index.py": proven_by(
        "tests/tools/test_build_sample_index.py::test_the_run_asks_for_what_was_built"
    ),
    "find data/sample_index": run(swap=("find", "mkdir -p data/sample_index && find")),
    # Training.
    "python -m fixedcode_megatron.pretrain": run(
        "--data-path x --tokenizer-model y --print-config"
    ),
    "bash examples/sft.sh": all_of(
        flags_are_known,
        proven_by(
            "tests/distributed/test_sft.py::test_the_example_tunes_over_the_base_runs_configuration"
        ),
    ),
    ".venv/bin/python tools/quickstart.py": all_of(
        flags_are_known,
        proven_by("tests/tools/test_quickstart.py::test_report_of_a_whole_run"),
    ),
    "python tools/compare_runs.py": run("--list"),
    "python tools/plan_training.py": run(),
    "python tools/profile_throughput.py": run(
        SHAPE + " --kv-channels 16 --num-query-groups 2 --rounds 1 --steps 1"
    ),
    # Models. The suite's tasks are downloads.
    "python tools/convert_checkpoint.py": run(),
    "python tools/generate.py": run("--max-new-tokens 4"),
    "python tools/evaluate_model.py": all_of(
        run("--help"), proven_by(EVALUATION + "test_results_are_what_arithmetic_says")
    ),
    "torchrun --nproc-per-node 2 tools/evaluate_model.py": proven_by(
        EVALUATION + "test_two_ranks_share_a_model"
    ),
}


def check_of(command):
    for start, check in CHECKS.items():
        if command.startswith(start):
            return start, check
    raise AssertionError(f"{command!r} has no entry in CHECKS: say how it is tested")


@pytest.mark.parametrize("page", sorted({page for page, _ in commands()}))
def test_commands_of(page, world):
    for where, command in commands():
        if where == page:
            check_of(command)[1](command, world)


def test_every_entry_is_for_a_command():
    used = {check_of(command)[0] for _, command in commands()}
    assert used == set(CHECKS)


PYTHON = [
    (page.name, text)
    for page in PAGES
    for text in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    # These two are run inside the loops that they are for.
    if "megatron.training" not in text and "torchtitan" not in text
]


def test_the_other_snippets_run_in_their_loops():
    for name in ("test_stock_loops.py", "test_torchtitan.py"):
        (path,) = ROOT.glob(f"tests/*/{name}")
        assert "integrations.md" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "snippet"), PYTHON, ids=[page for page, _ in PYTHON])
def test_snippet(page, snippet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, page, "exec"), {})
