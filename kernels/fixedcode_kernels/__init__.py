"""The token-code op: one specification, several backends, each proven equal bit for bit.

Importing the package loads torch and nothing else: compilers, Triton and GPUs are looked for when a
tensor first needs them, and their absence is never an error.
"""

from fixedcode_kernels import forks as forks  # notes forks from now on
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
