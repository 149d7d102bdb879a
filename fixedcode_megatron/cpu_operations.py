"""Element-wise parts of megatron-core in fewer passes over memory, for CPUs.

On GPUs a compiler or Transformer Engine fuses these; run eagerly each line of megatron-core's
formulas is a pass over an activation, and they add up to several percent of a training step.
`install()` replaces three functions. Forward values and gradients are the same formulas.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor


def install() -> None:
    """Put the functions below in the place of megatron-core's."""
    import megatron.core.fusions.fused_bias_swiglu as swiglu
    import megatron.core.models.common.embeddings.rope_utils as rope
    import megatron.core.tensor_parallel.layers as layers

    swiglu.swiglu_back = swiglu_backward
    rope._apply_rotary_pos_emb_bshd = _rotary_or(rope._apply_rotary_pos_emb_bshd)
    if not layers._grad_accum_fusion_available:
        layers._grad_accum_fusion_available = True
        layers.fused_weight_gradient_mlp_cuda = types.SimpleNamespace(
            wgrad_gemm_accum_fp32=accumulate_weight_gradient,
            wgrad_gemm_accum_fp16=accumulate_weight_gradient,
        )


def swiglu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Gradient of silu(a) * b at x = [a, b] [..., 2 f], given that of the result [..., f]."""
    gate, linear = x.chunk(2, dim=-1)
    result = torch.empty_like(x)
    into_gate, into_linear = result.chunk(2, dim=-1)
    torch.ops.aten.silu_backward.grad_input(grad * linear, gate, grad_input=into_gate)
    torch.mul(torch.nn.functional.silu(gate), grad, out=into_linear)
    return result


def accumulate_weight_gradient(x: Tensor, grad: Tensor, main_grad: Tensor) -> None:
    """main_grad [out, in] += grad [n, out]^T x [n, in], as apex's extension does it on GPUs."""
    if main_grad.dtype == x.dtype:
        main_grad.addmm_(grad.t(), x)
    else:
        main_grad += torch.mm(grad.t(), x)


class _Rotary(torch.autograd.Function):
    """Rotates pairs (i, i + d/2) of the last dimension: x cos + (-x2, x1) sin."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(grad, cos, sin.roll(sin.shape[-1] // 2, -1), -1), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    sin1, sin2 = sin.chunk(2, dim=-1)
    result = x * cos
    first, second = result.chunk(2, dim=-1)
    first.addcmul_(x2, sin1, value=-sign)
    second.addcmul_(x1, sin2, value=sign)
    return result


def _rotary_or(original: Any) -> Any:
    """`_apply_rotary_pos_emb_bshd` for whole heads of separate halves; `original` for the rest."""

    def rotary(t: Tensor, freqs: Tensor, *args: Any, mscale: float = 1.0, **options: Any) -> Tensor:
        if any(args) or any(options.values()) or freqs.shape[-1] != t.shape[-1]:
            return original(t, freqs, *args, mscale=mscale, **options)
        cos, sin = _cos_and_sin(freqs, mscale, t.dtype)
        result: Tensor = _Rotary.apply(t, cos, sin)
        return result

    return rotary


def _cos_and_sin(freqs: Tensor, mscale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Both for every position; kept with `freqs`, which all layers and steps share."""
    known: dict[Any, tuple[Tensor, Tensor]] = freqs.__dict__.setdefault("_cos_and_sin", {})
    key = (mscale, dtype, freqs._version)
    if key not in known:
        known[key] = ((freqs.cos() * mscale).to(dtype), (freqs.sin() * mscale).to(dtype))
    return known[key]
