"""The op ``fixedcode::token_code``: definition, fake kernel, checks and the public function.

It is registered on a raw `torch.library.Library`: half the call overhead of ``custom_op``. It has
no gradient, makes no host sync (unless ids are checked), and returns a tensor that is no view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fixedcode_kernels.dispatch import chosen_fill
from fixedcode_kernels.spec import CodeLike, Lift, make_lift

_ARGUMENTS = (
    "int num_bits, int hidden_size, ScalarType dtype, int[] row_masks, int shift, float scale, "
    "float offset, bool interleave, SymInt seq_start, SymInt seq_length, int vocab_size"
)
_LIBRARY = torch.library.Library("fixedcode", "DEF")
_LIBRARY.define(
    f"token_code(Tensor ids, {_ARGUMENTS}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)
_LIBRARY.define(
    f"token_code_out(Tensor ids, Tensor(a!) out, {_ARGUMENTS}) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _check_ids_tensor(ids: Tensor, seq_start: int, seq_length: int) -> None:
    if ids.dim() != 2:
        raise ValueError(f"ids has shape {tuple(ids.shape)}; it must be [b, s]")
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"ids is {ids.dtype}; it must be torch.int64 or torch.int32")
    if seq_start < 0 or seq_length < 0 or seq_start + seq_length > ids.size(1):
        raise ValueError(
            f"seq_start {seq_start} and seq_length {seq_length} leave the sequence of "
            f"{ids.size(1)} tokens"
        )


def _check_call(ids: Tensor, code: CodeLike, check_ids: bool) -> None:
    """What the op itself cannot say, because it never sees the code."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"ids is a {type(ids).__name__}; it must be a torch.Tensor [b, s]")
    if ids.dim() != 2:
        raise ValueError(f"ids has shape {tuple(ids.shape)}; it must be [b, s]")
    if getattr(code, "kind", "") == "random":
        raise ValueError("code is of kind 'random', which has no bits; use its own embed method")
    if check_ids and code.vocab_size < 1:
        raise ValueError(f"vocab_size is {code.vocab_size}; check_ids needs at least 1")
    if code.lift not in ("tile", "interleave"):
        raise ValueError(f"lift is {code.lift!r}; it must be 'tile' or 'interleave'")


def _check_given_output(ids: Tensor, out: Tensor) -> None:
    """What can be said of `out` while the call is traced."""
    if out.device != ids.device:
        raise ValueError(f"ids is on {ids.device} and out on {out.device}; move one of them")
    if out.requires_grad and torch.is_grad_enabled():
        raise ValueError("out requires grad, but the op has no gradient; pass out.detach()")


def _overlap(ids: Tensor, out: Tensor) -> bool:
    """Return whether `out` lies within the stretch of memory from the first id to the last."""
    span = 1 + sum((n - 1) * step for n, step in zip(ids.shape, ids.stride(), strict=True))
    first, out_first = ids.data_ptr(), out.data_ptr()
    return out_first < first + span * ids.element_size() and first < out_first + out.nbytes


def check_id_range(ids: Tensor, vocab_size: int, seq_start: int, seq_length: int) -> None:
    """Raise ValueError naming the first id outside ``[0, vocab_size)``; syncs with the device."""
    ids = ids[:, seq_start : seq_start + seq_length]
    if ids.numel() == 0:
        return
    if ids.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ValueError("check_ids needs a host sync; leave it off while a CUDA graph is captured")
    low, high = torch.aminmax(ids)
    if int(low) >= 0 and int(high) < vocab_size:
        return
    wide = ids.long()  # the size of a vocabulary of 2^31 is no int32
    row, position = ((wide < 0) | (wide >= vocab_size)).nonzero()[0].tolist()
    raise ValueError(
        f"token id {int(ids[row, position])} at row {row}, position {seq_start + position} is "
        f"outside the vocabulary 0 .. {vocab_size - 1}"
    )


class _Arguments(NamedTuple):
    """What follows the tensors in the op's schema, in its order."""

    num_bits: int
    hidden_size: int
    dtype: torch.dtype
    row_masks: Sequence[int]
    shift: int
    scale: float
    offset: float
    interleave: bool
    seq_start: int
    seq_length: int
    vocab_size: int  # 0: ids are not checked

    def lift(self) -> Lift:
        return make_lift(*self[:3], tuple(self.row_masks), *self[4:8])

    def shape(self, ids: Tensor) -> tuple[int, int, int]:
        return self.seq_length, ids.size(0), self.hidden_size


def _check_out(ids: Tensor, out: Tensor, call: _Arguments) -> None:
    shape = call.shape(ids)
    if tuple(out.shape) != shape or out.dtype != call.dtype or not out.is_contiguous():
        raise ValueError(
            f"out is {out.dtype} {tuple(out.shape)} with strides {out.stride()}; it must be a "
            f"contiguous {call.dtype} {shape}"
        )
    if out.numel() and _overlap(ids, out):
        raise ValueError("ids and out share memory: writing out would change the ids")


def _fill(ids: Tensor, out: Tensor, lift: Lift, call: _Arguments) -> None:
    if call.vocab_size:
        check_id_range(ids, call.vocab_size, call.seq_start, call.seq_length)
    if out.numel():
        chosen_fill(ids.device.type)(ids, out, lift, call.seq_start)


def _token_code(ids: Tensor, *arguments: Any) -> Tensor:
    call = _Arguments(*arguments)
    lift = call.lift()
    _check_ids_tensor(ids, call.seq_start, call.seq_length)
    out = ids.new_empty(call.shape(ids), dtype=call.dtype)
    _fill(ids, out, lift, call)
    return out


def _token_code_out(ids: Tensor, out: Tensor, *arguments: Any) -> None:
    call = _Arguments(*arguments)
    lift = call.lift()
    _check_ids_tensor(ids, call.seq_start, call.seq_length)
    _check_out(ids, out, call)
    _fill(ids, out, lift, call)
    torch.autograd.graph.increment_version(out)  # so that autograd notices if it saved `out`


@torch.library.register_fake("fixedcode::token_code", lib=_LIBRARY)
def _token_code_fake(ids: Tensor, *arguments: Any) -> Tensor:
    call = _Arguments(*arguments)
    call.lift()  # checks the values
    _check_ids_tensor(ids, call.seq_start, call.seq_length)
    return ids.new_empty(call.shape(ids), dtype=call.dtype)


@torch.library.register_fake("fixedcode::token_code_out", lib=_LIBRARY)
def _token_code_out_fake(ids: Tensor, out: Tensor, *arguments: Any) -> None:
    call = _Arguments(*arguments)
    call.lift()
    _check_ids_tensor(ids, call.seq_start, call.seq_length)


for _device in ("CPU", "CUDA"):
    _LIBRARY.impl("token_code", _token_code, _device)
    _LIBRARY.impl("token_code_out", _token_code_out, _device)


def token_code_embedding(
    ids: Tensor,
    code: CodeLike,
    hidden_size: int,
    *,
    dtype: torch.dtype = torch.float32,
    seq_start: int = 0,
    seq_length: int | None = None,
    check_ids: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Embed token ids by their fixed code, straight into Megatron's ``[s, b, h]`` layout.

    Parameters
    ----------
    ids : Tensor [b, s]
        int32 or int64, any strides, CPU or CUDA.
    code : CodeLike
        What `CodeSpec` or `fixedcode_megatron.codes.TokenCode` holds.
    hidden_size : int
        h. Under the tile lift the last tile may be partial.
    dtype : torch.dtype
        float32, bfloat16 or float16 (float64 for proofs).
    seq_start, seq_length : int
        The slice of the sequence to embed: ``s_local = seq_length`` positions from `seq_start`
        (sequence parallel ranks make their own slice). By default all that follow `seq_start`.
    check_ids : bool
        Raise on ids outside ``[0, code.vocab_size)``. Costs a host sync on a GPU. Without it such
        an id counts modulo 2^K.
    out : Tensor [s_local, b, h], optional
        Contiguous tensor of `dtype` on the ids' device to write to; it must not share memory with
        the ids, nor require grad.

    Returns
    -------
    Tensor [s_local, b, h]
        Requires no gradient; not a view.

    Raises
    ------
    ValueError
        Naming the argument, the value found and what would work.
    """
    _check_call(ids, code, check_ids)
    arguments = (
        code.num_bits,
        hidden_size,
        dtype,
        () if code.row_masks is None else code.row_masks,
        code.shift,
        code.scale,
        code.offset,
        code.lift == "interleave",
        seq_start,
        ids.size(1) - seq_start if seq_length is None else seq_length,
        code.vocab_size if check_ids else 0,
    )
    if out is None:
        result: Tensor = torch.ops.fixedcode.token_code.default(ids, *arguments)
        return result
    _check_given_output(ids, out)
    torch.ops.fixedcode.token_code_out.default(ids, out, *arguments)
    return out
