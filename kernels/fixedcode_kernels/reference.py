"""The truth that every backend is compared with: short, slow, plain torch, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from fixedcode_kernels.spec import Lift, bit_values


def encode(ids: Tensor, num_bits: int, row_masks: tuple[int, ...], shift: int) -> Tensor:
    """Return the codes of `ids`: ``A (id mod 2^K) xor shift``, int64, same shape."""
    ids = ids.to(torch.int64) & ((1 << num_bits) - 1)
    if not row_masks:
        return ids ^ shift
    codes = torch.zeros_like(ids)
    for j, mask in enumerate(row_masks):
        parity = ids & mask
        for distance in (16, 8, 4, 2, 1):
            parity = parity ^ (parity >> distance)
        codes |= (parity & 1) << j
    return codes ^ shift


def embed(ids: Tensor, lift: Lift) -> Tensor:
    """Return ``[..., hidden_size]`` of the lift's dtype for ids ``[...]``."""
    codes = encode(ids, lift.num_bits, lift.row_masks, lift.shift)
    element = torch.arange(lift.hidden_size, device=ids.device)
    column = element // lift.group if lift.interleave else element % lift.num_bits
    bits = (codes.unsqueeze(-1) >> column) & 1
    values = bit_values(lift.scale, lift.offset, lift.dtype).to(ids.device)
    return values[bits]


def fill(ids: Tensor, out: Tensor, lift: Lift, seq_start: int) -> None:
    """Write ``out [s_local, b, h]`` from ``ids [b, s]``; the interface that all backends share."""
    local = ids[:, seq_start : seq_start + out.size(0)].t()
    out.copy_(embed(local, lift))
