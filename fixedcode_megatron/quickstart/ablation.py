"""What each code bit is worth to a trained model: its loss with that bit shown as 0 everywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fixedcode_megatron.codes import TokenCode


@contextlib.contextmanager
def zeroed_bit(embedding: torch.nn.Module, code: TokenCode, bit: int) -> Iterator[None]:
    """Make an input interface show code bit `bit` of every token as a 0 bit.

    "Code bit" is a bit of the code that the model sees, after matrix and shift. A 0 bit shows as
    `TokenCode.bit_values(dtype)[0]`, which is not 0 where the code has an offset.

    Parameters
    ----------
    embedding
        Module whose output is [s, b, h] (or any [..., h]).
    """
    assert 0 <= bit < code.num_bits

    def replace(_module: torch.nn.Module, _inputs: object, output: Tensor) -> Tensor:
        elements = code.lift_index(output.shape[-1]).to(output.device) == bit
        zero, _ = code.bit_values(output.dtype)
        return output.masked_fill(elements, zero)

    handle = embedding.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()


def losses_without_each_bit(
    embedding: torch.nn.Module, code: TokenCode, loss: Callable[[], float]
) -> list[float]:
    """`loss()` with each of the K code bits zeroed in turn, lowest bit first."""
    losses = []
    for bit in range(code.num_bits):
        with zeroed_bit(embedding, code, bit):
            losses.append(loss())
    return losses
