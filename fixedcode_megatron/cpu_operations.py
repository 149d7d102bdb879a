"""Parts of megatron-core that CPUs run faster in another way.

Matrix products in FP32 go to oneDNN, which multiplies activations by weights 10 to 20 % faster than
torch.mm. Element-wise operations take fewer passes over memory: on GPUs a compiler or Transformer
Engine fuses them, but run eagerly each line of megatron-core's formulas is a pass over an
activation. `install()` replaces five functions; forward values and gradients are the same formulas.
"""

from __future__ import annotations

import types
from typing import Any, cast

import torch
from torch import Tensor


def install() -> None:
    """Put the functions below in the place of megatron-core's."""
    import megatron.core.fusions.fused_bias_swiglu as swiglu
    import megatron.core.models.common.embeddings.rope_utils as rope
    import megatron.core.tensor_parallel.layers as layers

    swiglu.swiglu_back = swiglu_backward
    rope._apply_rotary_pos_emb_bshd = _rotary_or(rope._apply_rotary_pos_emb_bshd)
    torch.nn.functional.rms_norm = _rms_norm_or(torch.nn.functional.rms_norm)
    layers.LinearWithGradAccumulationAndAsyncCommunication = _LinearOr(
        layers.LinearWithGradAccumulationAndAsyncCommunication
    )
    if not layers._grad_accum_fusion_available:
        layers._grad_accum_fusion_available = True
        layers.fused_weight_gradient_mlp_cuda = types.SimpleNamespace(
            wgrad_gemm_accum_fp32=accumulate_weight_gradient,
            wgrad_gemm_accum_fp16=accumulate_weight_gradient,
        )


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., k] times the transpose of weight [n, k], by oneDNN for FP32 on CPUs."""
    if x.device.type == "cpu" and x.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        rows = torch.ops.mkldnn._linear_pointwise(x.flatten(0, -2), weight, None, "none", [], "")
        # As torch.matmul's, the result is no view: whoever takes it may overwrite it.
        return torch.ops.aten._unsafe_view(rows, (*x.shape[:-1], len(weight)))
    return torch.matmul(x, weight.t())


class _Linear(torch.autograd.Function):
    """A linear layer without communication; its weight gradient may go to the main gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, fuse: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        # Not saved: whoever adds to it between forward and backward changes no value used here.
        ctx.main_grad = getattr(weight, "main_grad", None) if fuse else None
        result = multiply(x, weight)
        return result if bias is None else result.add_(bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_x = multiply(grad, weight.t())
        rows, grad_rows = x.flatten(0, -2), grad.flatten(0, -2)
        grad_bias = grad_rows.sum(dim=0) if ctx.has_bias else None
        if ctx.main_grad is None:
            return grad_x, grad_rows.t().mm(rows), grad_bias, None
        accumulate_weight_gradient(rows, grad_rows, ctx.main_grad)
        return grad_x, _added_to_main_grad(weight), grad_bias, None


def _added_to_main_grad(weight: Tensor) -> Tensor | None:
    """What backward returns for a weight whose gradient is in its `main_grad` already.

    DDP's hook runs when a gradient arrives, so it gets one; `grad_added_to_main_grad` tells it not
    to add that up.
    """
    parameter: Any = weight
    if not hasattr(parameter, "grad_added_to_main_grad"):
        return None
    parameter.grad_added_to_main_grad = True
    zero = getattr(parameter, "zero_out_wgrad", False)
    return torch.zeros_like(weight) if zero else torch.empty_like(weight)


class _LinearOr:
    """megatron-core's linear function, with `_Linear` for calls that need no communication."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def apply(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        gradient_accumulation_fusion: bool,
        allreduce_dgrad: bool,
        sequence_parallel: bool,
        grad_output_buffer: list[Tensor] | None,
        *others: Any,
    ) -> Tensor:
        if allreduce_dgrad or sequence_parallel or grad_output_buffer is not None:
            options = gradient_accumulation_fusion, allreduce_dgrad, sequence_parallel
            result = self._original.apply(x, weight, bias, *options, grad_output_buffer, *others)
        else:
            result = _Linear.apply(x, weight, bias, gradient_accumulation_fusion)
        return cast(Tensor, result)


class _RMSNorm(torch.autograd.Function):
    """x / rms(x) * weight over the last dimension; keeps its input and a number a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        normed = x * inverse
        grad_weight = (grad * normed).flatten(0, -2).sum(0)
        grad = grad * weight
        along = torch.linalg.vecdot(grad, normed).div_(-x.shape[-1])
        return grad.addcmul_(normed, along.unsqueeze(-1)).mul_(inverse), grad_weight, None


def _rms_norm_or(original: Any) -> Any:
    """`torch.nn.functional.rms_norm`, with `_RMSNorm` for FP32 rows."""

    def rms_norm(
        input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        rows = weight is not None and len(normalized_shape) == 1
        if not rows or input.dtype != torch.float32 or input.dim() < 2:
            return cast(Tensor, original(input, normalized_shape, weight, eps))
        smallest = torch.finfo(input.dtype).eps if eps is None else eps
        return cast(Tensor, _RMSNorm.apply(input, weight, smallest))

    return rms_norm


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
