"""Building on first use: fallbacks with a reason, processes that start together, the C layout."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch
from kernel_cases import emulated_cuda

import fixedcode_kernels
from fixedcode_kernels import CodeSpec, build, cpu, native, token_code_embedding, use_backend

RUN_ONE = """
import torch, fixedcode_kernels as fk
code = fk.CodeSpec(vocab_size=8, num_bits=3)
assert fk.token_code_embedding(torch.tensor([[5]]), code, 3).flatten().tolist() == [1, 0, 1]
print(*(backend for backend in fk.backends() if backend.device == 'cpu'), sep='\\n')
"""
needs_compiler = pytest.mark.skipif(
    cpu.unavailable() is not None, reason=f"C++ kernel: {cpu.unavailable()}"
)


def run_one(**environment):
    return subprocess.Popen(
        [sys.executable, "-c", RUN_ONE],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


@needs_compiler
def test_processes_that_start_together_build_one_library(tmp_path):
    processes = [run_one(FIXEDCODE_KERNELS_CACHE=str(tmp_path)) for _ in range(2)]
    for process in processes:
        assert "* cpu   cpu        in use" in finish(process)
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]  # no temporary files are left


def test_without_a_compiler_the_table_takes_over(tmp_path):
    out = finish(run_one(FIXEDCODE_KERNELS_CACHE=str(tmp_path), PATH=str(tmp_path), CXX=""))
    assert "  cpu   cpu        no C++ compiler found" in out
    assert "* cpu   table      in use" in out


def test_a_broken_compiler_is_reported_and_the_table_takes_over(tmp_path):
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho 'disk is full' >&2\nexit 1\n")
    broken.chmod(0o755)
    out = finish(run_one(FIXEDCODE_KERNELS_CACHE=str(tmp_path / "cache"), CXX=str(broken)))
    assert "disk is full" in out
    assert "* cpu   table      in use" in out


def test_a_cache_folder_that_cannot_be_written_is_passed_over(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("")
    out = finish(run_one(FIXEDCODE_KERNELS_CACHE=str(occupied / "x"), XDG_CACHE_HOME=str(occupied)))
    assert "in use" in out


def test_a_forced_backend_from_the_environment(tmp_path):
    out = finish(run_one(FIXEDCODE_KERNELS_BACKEND="reference"))
    assert out.split() == ["*", "cpu", "reference", "in", "use"]


def test_report_names_every_backend_with_a_reason():
    report = {(backend.device, backend.name): backend for backend in fixedcode_kernels.backends()}
    assert set(report) == {
        ("cpu", "cpu"),
        ("cpu", "table"),
        ("cuda", "triton"),
        ("cuda", "cuda"),
        ("cuda", "table"),
    }
    assert all(backend.reason for backend in report.values())
    assert sum(backend.chosen for backend in report.values() if backend.device == "cpu") == 1
    if not torch.cuda.is_available():
        assert report["cuda", "triton"].reason == "no CUDA device"


def test_forcing_a_gpu_backend_on_cpu_tensors_says_so():
    code = CodeSpec(vocab_size=8, num_bits=3)
    with use_backend("triton"), pytest.raises(RuntimeError, match="does not serve cpu tensors"):
        token_code_embedding(torch.tensor([[5]]), code, 3)
    with pytest.raises(ValueError, match=r"'cuda\+\+'"), use_backend("cuda++"):
        pass


@needs_compiler
def test_ctypes_and_c_agree_on_the_layout():
    sizes = (ctypes.c_uint32 * 2)()
    emulated_cuda().fc_layout(sizes)
    assert list(sizes) == [ctypes.sizeof(native.CodeStruct), ctypes.sizeof(native.CallStruct)]


def test_a_failed_build_raises_with_the_compilers_words(tmp_path):
    compiler = build.find_compiler("CXX", "g++", "clang++", "c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    with pytest.raises(build.BuildError, match=r"no_such_file\.cpp"):
        build.build_library("broken", compiler, [["-c", "{src}/no_such_file.cpp"]])
