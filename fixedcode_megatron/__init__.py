"""Pre-train language models whose input interface is computed, not looked up."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fixedcode_megatron.codes import TokenCode
    from fixedcode_megatron.embedding import FixedCodeEmbedding, replace_input_embeddings

__version__ = "0.1.0.dev0"
__all__ = ["FixedCodeEmbedding", "TokenCode", "__version__", "replace_input_embeddings"]

_HOMES = {
    "FixedCodeEmbedding": "embedding",
    "TokenCode": "codes",
    "replace_input_embeddings": "embedding",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
