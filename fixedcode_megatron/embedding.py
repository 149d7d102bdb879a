"""The fixed token code as a plain PyTorch module, for models that others have built.

Nothing here needs megatron-core or transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from fixedcode_kernels import token_code_embedding
from fixedcode_megatron.codes import TokenCode
from fixedcode_megatron.errors import UserError

logger = logging.getLogger(__name__)

CONFIG_KEY = "fixedcode_token_code"
"""Name under which a transformers model's configuration remembers its code."""


class FixedCodeEmbedding(nn.Module):
    """The token's fixed code, tiled to the model's width; stands where `nn.Embedding` stood.

    It owns no parameter and adds nothing to a state dict. The output's dtype follows `dtype` and
    then whatever `.to(dtype)`, `.half()` or `.bfloat16()` asks of the model; its device is that of
    the ids. It never requires a gradient.

    Parameters
    ----------
    code
        Which code; its `vocab_size` is the number of ids.
    embedding_dim
        Width of the output; must suit the code (`TokenCode.check_width`).
    dtype
        Floating dtype of the output; default: torch's default dtype.
    check_ids
        Raise on ids outside the vocabulary (costs a host synchronisation on GPUs). Without it such
        an id counts modulo 2**K.

    Attributes
    ----------
    num_embeddings, embedding_dim
        As in `nn.Embedding`.
    dtype
        Dtype of the output.
    """

    def __init__(
        self,
        code: TokenCode,
        embedding_dim: int,
        *,
        dtype: torch.dtype | None = None,
        check_ids: bool = False,
    ) -> None:
        super().__init__()
        code.check_width(embedding_dim)
        self.code, self.check_ids = code, check_ids
        self.num_embeddings, self.embedding_dim = code.vocab_size, embedding_dim
        self.dtype = dtype or torch.get_default_dtype()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `.to()` and its like do to a tensor of this dtype, they do to the dtype."""
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return super()._apply(fn, recurse)

    def forward(self, input: Tensor) -> Tensor:
        """Input vectors of integer ids [...]: [..., embedding_dim]."""
        if self.code.kind == "random":
            return self.code.embed(input, self.embedding_dim, self.dtype, check=self.check_ids)
        flat = token_code_embedding(
            input.reshape(1, -1),
            self.code,
            self.embedding_dim,
            dtype=self.dtype,
            check_ids=self.check_ids,
        )
        return flat.view(*input.shape, self.embedding_dim)

    def extra_repr(self) -> str:
        """What `print` shows."""
        code = self.code
        return f"{self.num_embeddings}, {self.embedding_dim}, {code.kind}, bits={code.num_bits}"


def replace_input_embeddings(
    model: Any, code: TokenCode | None = None, *, untie: bool = False
) -> FixedCodeEmbedding:
    """Give a transformers model a fixed code in place of its input table; returns the new module.

    The model's configuration remembers the code, so that after `save_pretrained` and
    `from_pretrained` a call without `code` restores the same input.

    Parameters
    ----------
    model
        A `PreTrainedModel` with an input table (or one that was replaced before).
    code
        Default: the one that the model's configuration remembers.
    untie
        Let a head that is tied to the table keep a copy of its own.

    Raises
    ------
    UserError
        If no code is known, it is of another vocabulary or width, or the head is tied to the table.
    """
    config = model.config.get_text_config()
    if code is None:
        text = getattr(config, CONFIG_KEY, None)
        if text is None:
            raise UserError(
                "replace_input_embeddings: the model's configuration remembers no code; give one, "
                "for example code=TokenCode.binary(model.get_input_embeddings().num_embeddings)"
            )
        code = TokenCode.from_json(text)
    old = model.get_input_embeddings()
    if code.vocab_size != old.num_embeddings:
        raise UserError(
            f"replace_input_embeddings: the code has vocab_size {code.vocab_size}, the model "
            f"{old.num_embeddings} ids; make the code for {old.num_embeddings}"
        )
    dtype = old.dtype if isinstance(old, FixedCodeEmbedding) else old.weight.dtype
    new = FixedCodeEmbedding(code, old.embedding_dim, dtype=dtype)
    _untie(model, config, old, untie)
    if type(old) not in (nn.Embedding, FixedCodeEmbedding):
        logger.warning(
            "the model's own %s may do more than look rows up; that is gone", type(old).__name__
        )
    model.set_input_embeddings(new)
    setattr(config, CONFIG_KEY, code.to_json())
    return new


def _untie(model: Any, config: Any, old: nn.Module, untie: bool) -> None:
    """Make sure that the head has weights of its own: a code has no table to share with it."""
    head = model.get_output_embeddings()
    if head is None:
        return
    shared = getattr(head, "weight", None) is getattr(old, "weight", head)
    if not (shared or config.tie_word_embeddings):
        return
    if not untie:
        raise UserError(
            "replace_input_embeddings: the model's head is tied to its input table "
            "(tie_word_embeddings=True), and a fixed code has no table to share; pass untie=True "
            "to let the head keep a copy of the table"
        )
    if shared:
        head.weight = nn.Parameter(head.weight.detach().clone())
    config.tie_word_embeddings = model.config.tie_word_embeddings = False
