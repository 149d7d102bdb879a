"""The compiled parts of the data path, built on first use where there is a C++ compiler.

Each has a counterpart in Python that does the same, more slowly.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path

logger = logging.getLogger(__name__)

_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti")
_NUMBER, _POINTER, _BYTES = ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
_SIGNATURES: dict[str, tuple[type, tuple]] = {
    "json_lines_read": (
        _NUMBER,
        (
            *(_BYTES, _NUMBER, _BYTES, _NUMBER, _BYTES, _NUMBER, _POINTER, _POINTER, ctypes.c_int),
            *(_POINTER, _POINTER, _POINTER, _NUMBER, ctypes.POINTER(_NUMBER)),
        ),
    ),
    "cut_digits": (
        _NUMBER,
        (
            *(_BYTES, _NUMBER, _POINTER, _POINTER, _NUMBER, _BYTES, _NUMBER, _POINTER, _NUMBER),
            ctypes.POINTER(_NUMBER),
        ),
    ),
    "collect_ids": (
        _NUMBER,
        (
            *(_POINTER, _NUMBER, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, _NUMBER),
            *(ctypes.c_int, _POINTER, _POINTER, _POINTER, _NUMBER, ctypes.POINTER(_NUMBER)),
        ),
    ),
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The functions of csrc/, or None where they cannot be built."""
    try:
        from fixedcode_kernels.build import BuildError, build_library, find_compiler
    except ImportError:  # a checkout that is not installed
        return None
    compiler = find_compiler("CXX", "g++", "clang++", "c++")
    if compiler is None:
        return None
    sources = [f"{{src}}/{path.name}" for path in sorted(_SOURCES.glob("*.cpp"))]
    steps = [[*_FLAGS, *sources, "-o", "{out}"]]
    try:
        built = ctypes.CDLL(str(build_library("data_path", compiler, steps, sources=_SOURCES)))
    except (BuildError, OSError) as error:
        logger.debug("the compiled parts are not used: %s", error)
        return None
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(built, name)
        function.restype, function.argtypes = result, arguments
    return built
