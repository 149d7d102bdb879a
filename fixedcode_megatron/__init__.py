"""Pre-train language models whose input interface is computed, not looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fixedcode_megatron.codes import TokenCode

__version__ = "0.1.0.dev0"
__all__ = ["TokenCode", "__version__"]


def __getattr__(name: str) -> Any:
    """Import `TokenCode` (and with it torch) only when it is asked for."""
    if name == "TokenCode":
        from fixedcode_megatron.codes import TokenCode

        return TokenCode
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
