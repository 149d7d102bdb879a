"""Plain-torch backend for any device: look up a small table of code words, then expand it.

Serves CPUs without a C++ compiler, GPUs without Triton, and FP64 on GPUs. The table covers 16 bits
of the id at a time; the affine map is in it, so it costs nothing.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from fixedcode_kernels.spec import Lift, bit_values, column_masks

_TABLE_BITS = 16
_LONG = torch.int64.itemsize


@functools.lru_cache(maxsize=8)
def _codes(lift: Lift, low_bit: int, device: torch.device) -> Tensor:
    """Return the codes of ``i << low_bit`` for all i below 2^16 (or 2^(K - low_bit))."""
    k = lift.num_bits
    columns = column_masks(lift.row_masks) if lift.row_masks else [1 << bit for bit in range(k)]
    codes = torch.tensor([lift.shift if low_bit == 0 else 0], device=device)
    for column in columns[low_bit : low_bit + _TABLE_BITS]:
        codes = torch.cat((codes, codes ^ column))  # the code is affine: one bit more, one XOR
    return codes


@functools.lru_cache(maxsize=8)
def _two_values(lift: Lift, device: torch.device) -> Tensor:
    """Return the values of the bits 0 and 1 on the device: a copy there would break a capture."""
    return bit_values(lift.scale, lift.offset, lift.dtype).to(device)


@functools.lru_cache(maxsize=8)
def _values(lift: Lift, device: torch.device) -> Tensor:
    """Return the ``[2^K, K]`` table of element values, for K up to 16."""
    bits = _codes(lift, 0, device).unsqueeze(-1) >> torch.arange(lift.num_bits, device=device)
    return _two_values(lift, device)[bits & 1]


def _columns(ids: Tensor, lift: Lift) -> Tensor:
    """Return the K element values of each id, ``[..., K]``."""
    ids = ids.to(torch.int64) & ((1 << lift.num_bits) - 1)
    if lift.num_bits <= _TABLE_BITS:
        return _values(lift, ids.device)[ids]
    low = _codes(lift, 0, ids.device)[ids & ((1 << _TABLE_BITS) - 1)]
    codes = low ^ _codes(lift, _TABLE_BITS, ids.device)[ids >> _TABLE_BITS]
    bits = (codes.unsqueeze(-1) >> torch.arange(lift.num_bits, device=ids.device)) & 1
    return _two_values(lift, ids.device)[bits]


def fill(ids: Tensor, out: Tensor, lift: Lift, seq_start: int) -> None:
    """Write ``out [s_local, b, h]`` (contiguous) from ``ids [b, s]``."""
    positions, batch, hidden = out.shape
    k = lift.num_bits
    columns = _columns(ids[:, seq_start : seq_start + positions].t(), lift)
    if lift.interleave:
        out.view(positions, batch, k, lift.group).copy_(columns.unsqueeze(-1))
        return
    tiles, rest = divmod(hidden, k)
    if rest:
        whole = tiles * k
        if tiles:
            head = out[..., :whole].unflatten(-1, (tiles, k))
            head.copy_(columns.unsqueeze(2))
        out[..., whole:] = columns[..., :rest]
        return
    offset = out.storage_offset() * out.element_size()
    if (k * out.element_size()) % _LONG == 0 and offset % _LONG == 0:  # copy 8 bytes at a time
        # flat, because a contiguous tensor may have any stride in a dimension of one
        out, columns = out.view(-1).view(torch.int64), columns.view(torch.int64)
    out.view(positions, batch, tiles, -1).copy_(columns.unsqueeze(2))
