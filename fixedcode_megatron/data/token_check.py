"""Are the token ids of a dataset inside the model's vocabulary?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fixedcode_megatron.data.indexed import IndexedDatasetReader
from fixedcode_megatron.data.summary import read_summary
from fixedcode_megatron.errors import UserError

_SCAN_TOKENS = 200_000_000
_WINDOW = 1_000_000


def check_token_ids(prefixes: Sequence[str], vocab_size: int) -> None:
    """Refuse data with ids that the model has no row for.

    The largest id comes from the summary that preprocessing wrote, if it belongs to the file;
    else all tokens are read, or, above 200 million, evenly spread windows of a million.

    Raises
    ------
    UserError
        Naming the dataset, the id found and the vocabulary it would need.
    """
    for prefix in prefixes:
        reader = IndexedDatasetReader(prefix)
        largest = _summary_max(prefix)
        if largest is None and int(np.iinfo(reader.dtype).max) >= vocab_size:
            largest = _scanned_max(reader.tokens)
        if largest is not None and largest >= vocab_size:
            raise UserError(
                f"{prefix} holds token id {largest}, but the model's vocabulary has {vocab_size} "
                f"ids: the data was made with another tokenizer, or --vocab-size must be at least "
                f"{largest + 1}"
            )


def _summary_max(prefix: str) -> int | None:
    """`max_token_id` of the summary beside a dataset, if it describes this very file."""
    known = (read_summary(prefix) or {}).get("max_token_id")
    return known if isinstance(known, int) else None


def _scanned_max(tokens: np.ndarray) -> int | None:
    if len(tokens) == 0:
        return None
    if len(tokens) <= _SCAN_TOKENS:
        starts: Sequence[int] = range(0, len(tokens), _WINDOW)
    else:
        starts = np.linspace(0, len(tokens) - _WINDOW, _SCAN_TOKENS // _WINDOW).astype(int).tolist()
    return max(int(tokens[start : start + _WINDOW].max()) for start in starts)
