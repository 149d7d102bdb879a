"""Builds C++ and CUDA sources on first use, into a per-user cache folder. Needs no torch.

A library's name holds a hash of the sources, the command, the compiler and (for code tuned to this
machine) the CPU, and a hash of its own bytes: loading half a file can kill the process, so a file
that a full disk or a crash has cut off is built again. It is written under a temporary name and
renamed, so that processes that start together build the same file twice at worst.
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
from collections.abc import Iterator, Sequence
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
CACHE_VARIABLE = "FIXEDCODE_KERNELS_CACHE"
_TIMEOUT_SECONDS = 300


class BuildError(RuntimeError):
    """A source could not be compiled or loaded; the message says why."""


def _candidates() -> Iterator[Path]:
    """Yield the folders that may hold libraries, in order of preference."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        yield Path(os.path.abspath(os.path.expanduser(chosen)))
    # A relative folder, or a home that nobody knows, would mean the current folder.
    for base in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(base):
            yield Path(base) / "fixedcode-kernels"
            break
    yield Path(tempfile.gettempdir()) / f"fixedcode-kernels-{os.getuid()}"


def _trusted(folder: Path) -> bool:
    """Return whether nobody but this user and root can have put files there."""
    try:
        status = folder.stat()
    except OSError:
        return False
    return status.st_uid in (0, os.getuid()) and not status.st_mode & stat.S_IWOTH


@functools.cache
def cache_folder() -> Path:
    """Return a writable folder that only this user can write to."""
    for folder in _candidates():
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError:
            continue
        if _trusted(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix="fixedcode-kernels-"))


def _content_hash(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()[:20]


def _find_built(stem: str) -> Path | None:
    """Return a whole library from the cache folder or one of higher rank that is read-only."""
    for folder in (*_candidates(), cache_folder()):
        for library in sorted(folder.glob(f"{stem}-*.so")) if _trusted(folder) else ():
            if _content_hash(library) == library.stem.removeprefix(f"{stem}-"):
                return library
        if folder == cache_folder():
            break
    return None


@functools.cache
def find_compiler(variable: str, *names: str) -> str | None:
    """Return the path of the first compiler found: ``$variable``, then `names`."""
    for name in (os.environ.get(variable), *names):
        if name and (path := shutil.which(name)):
            return path
    return None


def _run(command: Sequence[str], timeout: float) -> str:
    """Return what the command prints; raise BuildError with its last lines if it fails."""
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=timeout
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(str(error)) from error
    if result.returncode:
        tail = " | ".join(result.stderr.strip().splitlines()[-3:])
        raise BuildError(f"{Path(command[0]).name} failed: {tail}")
    return result.stdout


@functools.cache
def _compiler_version(compiler: str) -> str:
    return _run([compiler, "--version"], timeout=60)


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
    name: str,
    compiler: str,
    steps: Sequence[Sequence[str]],
    *,
    native: bool = False,
    sources: Path = SOURCES,
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
        `sources`.
    native : bool
        The code is tuned to this CPU, so the CPU is part of the key.
    sources : Path
        The folder of the sources, all of which are part of the key.

    Raises
    ------
    BuildError
        With the last lines of the compiler's message.
    """
    digest = hashlib.sha256(repr((compiler, [list(step) for step in steps])).encode())
    digest.update(_compiler_version(compiler).encode())
    digest.update((platform.machine() + (_cpu_identity() if native else "")).encode())
    for source in sorted(path for path in sources.iterdir() if path.is_file()):
        digest.update(source.name.encode() + source.read_bytes())
    stem = f"{name}-{digest.hexdigest()[:20]}"
    return _find_built(stem) or _run_steps(stem, compiler, steps, sources)


def _run_steps(stem: str, compiler: str, steps: Sequence[Sequence[str]], sources: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="build-") as folder:
        built = Path(folder) / "library.so"
        places = {"out": built, "object": Path(folder) / "object.o", "src": sources}
        for step in steps:
            _run([compiler, *(part.format(**places) for part in step)], _TIMEOUT_SECONDS)
        library = cache_folder() / f"{stem}-{_content_hash(built)}.so"
        os.replace(built, library)
        return library
