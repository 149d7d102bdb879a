"""The token-code op: one specification, several backends, each proven equal bit for bit.

Importing the package loads nothing; its names load torch and nothing else: compilers, Triton and
GPUs are looked for when a tensor first needs them, and their absence is never an error.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fixedcode_kernels import forks as forks  # notes forks from now on

if TYPE_CHECKING:
    from fixedcode_kernels.dispatch import Backend, backends, use_backend
    from fixedcode_kernels.op import token_code_embedding
    from fixedcode_kernels.spec import CodeLike, CodeSpec

__all__ = [
    "Backend",
    "CodeLike",
    "CodeSpec",
    "backends",
    "token_code_embedding",
    "use_backend",
]

_MODULES = {
    "Backend": "dispatch",
    "CodeLike": "spec",
    "CodeSpec": "spec",
    "backends": "dispatch",
    "token_code_embedding": "op",
    "use_backend": "dispatch",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
