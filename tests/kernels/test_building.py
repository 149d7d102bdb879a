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


def run_one(first="", cwd=None, **environment):
    """Start a process that runs `first` and one token; a variable of None is taken away."""
    variables = {**os.environ, **environment}
    return subprocess.Popen(
        [sys.executable, "-c", first + RUN_ONE],
        cwd=cwd,
        env={name: value for name, value in variables.items() if value is not None},
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


@needs_compiler
def test_a_cache_folder_given_relative_to_the_current_one(tmp_path):
    out = finish(run_one(FIXEDCODE_KERNELS_CACHE=".", cwd=tmp_path))
    assert "* cpu   cpu        in use" in out
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]


@needs_compiler
def test_without_a_home_nothing_is_written_to_the_current_folder(tmp_path):
    """A container whose user has no entry in the password file: ``~`` stays ``~``."""
    nobody = "import pwd\ndef unknown(uid): raise KeyError(uid)\npwd.getpwuid = unknown\n"
    temporary, current = tmp_path / "tmp", tmp_path / "current"
    temporary.mkdir()
    current.mkdir()
    for _ in range(2):
        process = run_one(
            nobody, HOME=None, XDG_CACHE_HOME=None, TMPDIR=str(temporary), cwd=current
        )
        assert "* cpu   cpu        in use" in finish(process)
    assert not list(current.iterdir())
    (folder,) = temporary.iterdir()  # the second process found what the first had built
    assert [path.suffix for path in folder.iterdir()] == [".so"]


@needs_compiler
@pytest.mark.parametrize("size", [0, 9000])
def test_a_library_that_was_cut_off_is_built_again(tmp_path, size):
    """Loading one that lacks its end kills a process by a bus error."""
    assert "in use" in finish(run_one(FIXEDCODE_KERNELS_CACHE=str(tmp_path)))
    (library,) = tmp_path.iterdir()
    whole = library.read_bytes()
    library.unlink()
    library.write_bytes(whole[:size])
    assert "* cpu   cpu        in use" in finish(run_one(FIXEDCODE_KERNELS_CACHE=str(tmp_path)))
    assert library.read_bytes() == whole


@needs_compiler
def test_a_folder_that_cannot_be_written_still_serves_what_it_holds(tmp_path, monkeypatch):
    """As a container's image may: built once, then read only."""
    compiler = build.find_compiler("CXX", "g++", "clang++", "c++")
    steps = [["-shared", "-fPIC", "-x", "c++", "{src}/token_code_emulate.cpp", "-o", "{out}"]]
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "image"))
    monkeypatch.setattr(build, "cache_folder", build.cache_folder.__wrapped__)
    built = build.build_library("served", compiler, steps)
    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path / "elsewhere")
    assert build.build_library("served", compiler, steps) == built
    built.parent.chmod(0o777)  # but not if anyone may have put it there
    (tmp_path / "elsewhere").mkdir()
    assert build.build_library("served", compiler, steps).parent == tmp_path / "elsewhere"


@needs_compiler
def test_the_default_dtype_of_torch_plays_no_part(tmp_path):
    first = "import torch; torch.set_default_dtype(torch.bfloat16)\n"
    assert "* cpu   cpu        in use" in finish(run_one(first))


@needs_compiler
def test_compilers_that_hang_or_speak_another_language_are_passed_over(tmp_path, monkeypatch):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(build, "_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(build, "_compiler_version", lambda compiler: "")
    with pytest.raises(build.BuildError, match=r"timed out after 0\.2 seconds"):
        build.build_library("slow", str(slow), [["-c"]])
    latin = tmp_path / "latin"
    latin.write_bytes(b"#!/bin/sh\nprintf 'ung\\374ltig' >&2\nexit 1\n")
    latin.chmod(0o755)
    monkeypatch.setattr(build, "_TIMEOUT_SECONDS", 60)
    with pytest.raises(build.BuildError, match=r"latin failed: ung.*ltig"):
        build.build_library("latin", str(latin), [["-c"]])


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
