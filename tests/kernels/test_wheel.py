"""A wheel installed elsewhere carries the sources and builds them on first use."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fixedcode_kernels import cpu
from fixedcode_kernels.cuda_kernel import find_nvcc

ROOT = Path(__file__).parents[2]
USE_IT = """
import sys, torch, fixedcode_kernels as fk
from fixedcode_kernels import cuda_kernel
from fixedcode_megatron.data.json_lines import JsonLinesReader
assert fk.__file__.startswith(sys.argv[1]), fk.__file__
code = fk.CodeSpec(vocab_size=8, num_bits=3)
assert fk.token_code_embedding(torch.tensor([[5]]), code, 3).flatten().tolist() == [1, 0, 1]
print([backend.name for backend in fk.backends() if backend.chosen])
reader = JsonLinesReader("k", 0)
assert sys.modules[JsonLinesReader.__module__].__file__.startswith(sys.argv[1])
assert reader.read(b'{"k": "a"}').text(0) == "a"
print('cuda library:', 'built' if not isinstance(cuda_kernel.library(), str) else 'none')
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the wheel from a copy of the sources and unpack it: what installing does."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in ("fixedcode_megatron", "kernels"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    built = subprocess.run(
        [*command, "--no-index", "--wheel-dir", folder, source], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_wheel_carries_every_source(site):
    for folder, parent in (
        ("fixedcode_kernels/csrc", "kernels"),
        ("fixedcode_megatron/data/csrc", ""),
    ):
        shipped = {path.name for path in (site / folder).iterdir()}
        assert shipped == {path.name for path in (ROOT / parent / folder).iterdir()}
    assert (site / "fixedcode_kernels/benchmark/__main__.py").exists()


@pytest.mark.skipif(cpu.unavailable() is not None, reason=f"C++ kernel: {cpu.unavailable()}")
def test_installed_wheel_builds_on_first_use(site, tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "FIXEDCODE_KERNELS_CACHE": str(tmp_path / "cache"),
    }
    result = subprocess.run(
        [sys.executable, "-c", USE_IT, str(site)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "['cpu'" in result.stdout
    libraries = sorted(path.name.split("-")[0] for path in (tmp_path / "cache").iterdir())
    if find_nvcc():
        assert "cuda library: built" in result.stdout
        assert libraries == ["data_path", "token_code_cpu", "token_code_cuda"]
    else:
        assert libraries == ["data_path", "token_code_cpu"]
