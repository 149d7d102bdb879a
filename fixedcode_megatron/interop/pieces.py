"""How Megatron's tensors and those of an exported form correspond.

A form is a list of `Piece`s. Each is one of Megatron's tensors (or one layer of it) and the Hugging
Face tensors that it is cut into; joining these gives the same bits again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fixedcode_megatron.interop.architecture import Architecture
from fixedcode_megatron.interop.weights import LAYERS

HEAD, TABLE, LOWDIM = "output_layer.weight", "embedding.word_embeddings.weight", "embedding.weight"
QKV, PROJ = "self_attention.linear_qkv", "self_attention.linear_proj"
FC1, FC2 = "mlp.linear_fc1", "mlp.linear_fc2"


@dataclass(frozen=True)
class Piece:
    """One Megatron tensor, cut as `cut` says into the tensors `names`.

    Attributes
    ----------
    cut
        `whole`; `qkv` into queries, keys, values; `qkv_rows` the same three, one under the other;
        `halves` into two.
    """

    key: str
    layer: int | None
    names: tuple[str, ...]
    cut: str = "whole"


@dataclass(frozen=True)
class Form:
    """How one architecture is exported.

    Attributes
    ----------
    config
        The content of config.json that the architecture decides.
    table
        Name of the input table, None where there is none.
    zeros
        Biases that the stock architecture has and ours lacks, with their lengths.
    """

    config: dict[str, Any]
    pieces: list[Piece]
    table: str | None
    zeros: dict[str, int]


def cut(piece: Piece, tensor: Tensor, a: Architecture) -> list[Tensor]:
    """The tensors of `piece.names`."""
    if piece.cut == "halves":
        return list(tensor.chunk(2))
    if not piece.cut.startswith("qkv"):
        return [tensor]
    groups = tensor.reshape(a.num_groups, a.group_rows, *tensor.shape[1:])
    queries = a.group_rows - 2 * a.head_size
    parts = groups.split([queries, a.head_size, a.head_size], dim=1)
    rows = [part.reshape(-1, *tensor.shape[1:]) for part in parts]
    return rows if piece.cut == "qkv" else [torch.cat(rows)]


def join(piece: Piece, tensors: list[Tensor], a: Architecture) -> Tensor:
    """Megatron's tensor; the inverse of `cut`."""
    if piece.cut == "halves":
        return torch.cat(tensors)
    if not piece.cut.startswith("qkv"):
        return tensors[0]
    if piece.cut == "qkv_rows":
        keys = a.num_groups * a.head_size
        tensors = list(tensors[0].split([a.num_heads * a.head_size, keys, keys]))
    parts = [t.reshape(a.num_groups, -1, *t.shape[1:]) for t in tensors]
    return torch.cat(parts, dim=1).reshape(-1, *tensors[0].shape[1:])


def tensor_shapes(form: Form, a: Architecture) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor of a form, by name."""
    shapes: dict[str, tuple[int, ...]] = {name: (size,) for name, size in form.zeros.items()}
    if form.table is not None:
        shapes[form.table] = (a.vocab_size, a.hidden_size)
    for piece in form.pieces:
        tensor = torch.empty(_megatron_shape(piece.key, a), device="meta")
        parts = zip(piece.names, cut(piece, tensor, a), strict=True)
        shapes |= {name: tuple(part.shape) for name, part in parts}
    return shapes


def _megatron_shape(key: str, a: Architecture) -> tuple[int, ...]:
    """Shape of Megatron's tensor, of one layer and without rows that only pad."""
    matrices = {
        "output_layer": (a.vocab_size, a.hidden_size),
        "embedding.word_embeddings": (a.vocab_size, a.hidden_size),
        "embedding": (a.vocab_size, a.code.num_bits if a.code else 0),
        QKV: (a.num_groups * a.group_rows, a.hidden_size),
        PROJ: (a.hidden_size, a.num_heads * a.head_size),
        FC1: (a.ffn_hidden_size * (2 if a.gated else 1), a.hidden_size),
        FC2: (a.hidden_size, a.ffn_hidden_size),
    }
    module, _, parameter = key.removeprefix(LAYERS).rpartition(".")
    if module in matrices and parameter in ("weight", "bias"):
        return matrices[module][: 2 if parameter == "weight" else 1]
    of_heads = module.endswith(("q_layernorm", "k_layernorm"))
    return (a.head_size if of_heads else a.hidden_size,)  # norms


def model_pieces(
    a: Architecture, layer_names: Callable[[int], Iterator[Piece]], norm: str, head: str
) -> list[Piece]:
    """Pieces of all layers (by keys inside a layer), the final norm and the head."""
    pieces = [
        Piece(LAYERS + piece.key, layer, piece.names, piece.cut)
        for layer in range(a.num_layers)
        for piece in layer_names(layer)
    ]
    pieces += [
        Piece(f"decoder.final_layernorm.{n}", None, (f"{norm}.{n}",)) for n in norm_parameters(a)
    ]
    return pieces if a.tied_head else [*pieces, Piece(HEAD, None, (head,))]


def norm_parameters(a: Architecture) -> list[str]:
    """Names of a norm's parameters."""
    return _parameters(a.normalization == "LayerNorm")


def _parameters(has_bias: bool) -> list[str]:
    return ["weight", "bias"] if has_bias else ["weight"]


def sizes(a: Architecture) -> dict[str, Any]:
    """The settings that all configurations of transformers name alike."""
    return {
        "vocab_size": a.vocab_size,
        "hidden_size": a.hidden_size,
        "intermediate_size": a.ffn_hidden_size,
        "num_hidden_layers": a.num_layers,
        "num_attention_heads": a.num_heads,
        "num_key_value_heads": a.num_groups,
        "max_position_embeddings": a.max_positions,
        "tie_word_embeddings": a.tied_head,
    }


def layer_pieces(
    a: Architecture, prefix: str, names: Mapping[str, tuple[str, ...]], cuts: Mapping[str, str]
) -> Iterator[Piece]:
    """Pieces of one layer from the names of its norms and linear layers."""
    for key, norm in ((QKV, "norm1"), (FC1, "norm2")):
        for n in norm_parameters(a):
            yield Piece(f"{key}.layer_norm_{n}", None, (f"{prefix}{names[norm][0]}.{n}",))
    for key, has_bias in (
        (QKV, a.qkv_bias),
        (PROJ, a.linear_bias),
        (FC1, a.linear_bias),
        (FC2, a.linear_bias),
    ):
        for n in _parameters(has_bias):
            full = tuple(f"{prefix}{name}.{n}" for name in names[key])
            yield Piece(f"{key}.{n}", None, full, cuts.get(key, "whole"))
