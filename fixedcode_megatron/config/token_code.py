"""The token code that a run's `--input-interface` and `--code-*` flags ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fixedcode_megatron.codes import TokenCode, load_matrix

if TYPE_CHECKING:
    from fixedcode_megatron.config.sections import InputConfig


def token_code(config: InputConfig, vocab_size: int) -> TokenCode | None:
    """Build the code for `vocab_size` ids; None for the learned table.

    For `lowdim` the code says only how wide the learned rows are and how they are lifted.

    Raises
    ------
    UserError
        If the flags do not make a valid code (a singular matrix, too few bits, ...).
    """
    if config.input_interface == "learned":
        return None
    look: dict[str, Any] = dict(
        num_bits=config.code_bits,
        scale=config.code_scale,
        offset=config.code_offset,
        lift=config.code_lift,
        allow_partial_tile=config.code_allow_partial_tile,
    )
    if config.input_interface == "gf2":
        matrix = None if config.code_matrix is None else load_matrix(config.code_matrix)
        return TokenCode.gf2(
            vocab_size, seed=config.code_seed, matrix=matrix, shift=config.code_shift, **look
        )
    if config.input_interface == "random":
        return TokenCode.random(vocab_size, seed=config.code_seed, **look)
    return TokenCode.binary(vocab_size, shift=config.code_shift, **look)
