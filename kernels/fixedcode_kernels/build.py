"""Builds the C++ and CUDA sources of csrc/ on first use, into a per-user cache folder.

A library's name holds a hash of the sources, the command, the compiler and (for code tuned to this
machine) the CPU. It is written under a temporary name and renamed, so that processes that start
together build the same file twice at worst and never see half of one.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
CACHE_VARIABLE = "FIXEDCODE_KERNELS_CACHE"
_TIMEOUT_SECONDS = 300


class BuildError(RuntimeError):
    """A source could not be compiled or loaded; the message says why."""


@functools.cache
def cache_folder() -> Path:
    """Return a writable folder that only this user can write to."""
    candidates = []
    if os.environ.get(CACHE_VARIABLE):
        candidates.append(Path(os.environ[CACHE_VARIABLE]))
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    candidates.append(Path(base) / "fixedcode-kernels")
    for folder in candidates:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=folder):
                pass
            foreign = folder.stat().st_uid != os.getuid() or folder.stat().st_mode & stat.S_IWOTH
        except OSError:
            continue
        if not foreign:
            return folder
    return Path(tempfile.mkdtemp(prefix="fixedcode-kernels-"))


@functools.cache
def find_compiler(variable: str, *names: str) -> str | None:
    """Return the path of the first compiler found: ``$variable``, then `names`."""
    for name in (os.environ.get(variable), *names):
        if name and (path := shutil.which(name)):
            return path
    return None


@functools.cache
def _compiler_version(compiler: str) -> str:
    result = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    return result.stdout


@functools.cache
def _cpu_identity() -> str:
    """Return what ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    kept = [line for line in lines if line.startswith(("flags", "Features", "model", "vendor_id"))]
    return "\n".join(sorted(set(kept)))


def build_library(
    name: str, compiler: str, steps: Sequence[Sequence[str]], *, native: bool = False
) -> Path:
    """Run the compiler `steps` unless their result is in the cache; return the library's path.

    Parameters
    ----------
    name : str
        Stem of the library's file name.
    compiler : str
        Path of the compiler that runs every step.
    steps : sequence of argument lists
        ``{out}`` stands for the library, ``{object}`` for an intermediate file, ``{src}`` for
        csrc/.
    native : bool
        The code is tuned to this CPU, so the CPU is part of the key.

    Raises
    ------
    BuildError
        With the last lines of the compiler's message.
    """
    digest = hashlib.sha256(repr((compiler, [list(step) for step in steps])).encode())
    digest.update(_compiler_version(compiler).encode())
    digest.update((platform.machine() + (_cpu_identity() if native else "")).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    library = cache_folder() / f"{name}-{digest.hexdigest()[:20]}.so"
    if not library.exists():
        _run_steps(library, compiler, steps)
    return library


def _run_steps(library: Path, compiler: str, steps: Sequence[Sequence[str]]) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as folder:
        built = Path(folder) / "library.so"
        places = {"out": built, "object": Path(folder) / "object.o", "src": SOURCES}
        for step in steps:
            command = [compiler, *(argument.format(**places) for argument in step)]
            try:
                result = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise BuildError(str(error)) from error
            if result.returncode:
                tail = " | ".join(result.stderr.strip().splitlines()[-3:])
                raise BuildError(f"{Path(compiler).name} failed: {tail}")
        os.replace(built, library)
