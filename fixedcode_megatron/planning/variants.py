"""The variants of a throughput measurement: input interfaces, with `+fold` for folding."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from fixedcode_megatron.errors import UserError

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig

FOLD = "+fold"


def check_variants(cfg: RunConfig, names: list[str]) -> None:
    """Refuse what cannot be built, before anything is measured.

    Raises
    ------
    UserError
        For a missing `--vocab-size`, and for a `+fold` variant that does not apply.
    """
    from fixedcode_megatron.config.availability import transformer_impl
    from fixedcode_megatron.config.megatron_fields import transformer_config
    from fixedcode_megatron.config.token_code import token_code
    from fixedcode_megatron.model.folding import check_foldable

    if cfg.model.vocab_size is None:
        raise UserError("give --vocab-size: the data are made up, so no tokenizer says it")
    for name in names:
        variant = variant_config(cfg, name)
        if variant.input.fold_first_layer:
            code = token_code(variant.input, cfg.model.vocab_size)
            interface = variant.input.input_interface
            try:
                check_foldable(
                    transformer_config(variant), code, interface, transformer_impl(variant)
                )
            except UserError as error:
                raise UserError(f"--variants {name}: {error}; or leave {name} out") from error


def variant_config(cfg: RunConfig, name: str) -> RunConfig:
    """The configuration of a variant: its interface, folded or not."""
    cfg = copy.deepcopy(cfg)
    cfg.set("input_interface", name.removesuffix(FOLD))
    cfg.set("fold_first_layer", name.endswith(FOLD))
    return cfg
