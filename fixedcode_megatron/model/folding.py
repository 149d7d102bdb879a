"""First-layer folding: layer 1's norm and QKV projection through the K columns of the code.

The input x = R c repeats K values over the width h, so its mean square is that of the K values, and

    W diag(gamma) norm(x) = F norm(c),    F = W diag(gamma) R    [output, K].

F costs one pass over W; everything that grows with the number of tokens is then K wide instead of h
wide. For LayerNorm the mean is subtracted from c, and W beta added. Parameters, their names and
their shapes stay those of the unfolded layer: F is made anew in every forward pass, and its
gradient is spread over W and gamma in every backward pass.

x has no gradient (the code is fixed), so none is computed: under sequence parallelism neither the
all-gather of x nor the reduce-scatter of its gradient is left.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import tensor_parallel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from fixedcode_megatron.codes import TokenCode
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.model.layers import LayerNormColumnParallelLinear

VALUES_ATTRIBUTE = "token_code_values"
"""Attribute of an input tensor that carries the whole sequence's code values [s, b, K]."""


class FoldedLayerNormColumnParallelLinear(LayerNormColumnParallelLinear):
    """`LayerNormColumnParallelLinear` for an input that is a lifted token code.

    `lift_index` [input_size] (set by `attach_code`) says which code column each element of the
    input shows.
    """

    lift_index: Tensor
    columns: slice

    def attach_code(self, code: TokenCode) -> None:
        """Say how the input was lifted; must be called before the first forward pass."""
        lift = code.lift_index(self.input_size).to(self.weight.device)
        self.register_buffer("lift_index", lift, persistent=False)
        repeats = self.input_size // code.num_bits
        tiled = code.lift == "tile"
        self.columns = slice(code.num_bits) if tiled else slice(None, None, repeats)

    def forward(self, input_: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Linear(norm(input_)): [s(/tp), b, h] -> [s, b, output_size / tp] and the skipped bias."""
        gamma: Tensor = self.layer_norm_weight
        beta = self.layer_norm_bias
        if self.config.layernorm_zero_centered_gamma:
            gamma = gamma + 1
        output = _FoldedNormLinear.apply(
            self._code_values(input_),
            self.weight,
            gamma,
            beta,
            self.lift_index,
            self.config.layernorm_epsilon,
            # Under sequence parallelism megatron-core sums the norm's gradients after backward.
            None if self.sequence_parallel or self.tp_group.size() == 1 else self.tp_group,
        )
        if self.bias is not None and not self.skip_bias_add:
            output = output + self.bias
        return output, self.bias if self.skip_bias_add else None

    def _code_values(self, input_: Tensor) -> Tensor:
        """The K values of each token of the whole sequence, [s, b, K].

        The input interface hands them over beside the input. Where the tensor has been replaced on
        the way (recomputation, another pipeline stage) they are read from it: K columns, gathered
        under sequence parallelism.
        """
        values = getattr(input_, VALUES_ATTRIBUTE, None)
        if values is not None:
            return values
        with torch.no_grad():
            values = input_[..., self.columns].contiguous()
            if self.sequence_parallel:
                values = tensor_parallel.gather_from_sequence_parallel_region(
                    values, tensor_parallel_output_grad=False, group=self.tp_group
                )
        return values


class _FoldedNormLinear(torch.autograd.Function):
    """norm(values) F^T + W beta with F = W diag(gamma) R; gradients for W, gamma and beta."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        weight: Tensor,
        gamma: Tensor,
        beta: Tensor | None,
        lift_index: Tensor,
        eps: float,
        reduce_group: dist.ProcessGroup | None,
    ) -> Tensor:
        wide = torch.promote_types(weight.dtype, torch.float32)
        c = values.to(wide)
        if beta is not None:
            c = c - c.mean(dim=-1, keepdim=True)
        c = c * torch.rsqrt(c.square().mean(dim=-1, keepdim=True) + eps)
        c = c.to(weight.dtype)
        output = F.linear(c, weight @ _lift_matrix(gamma, lift_index, c.shape[-1], weight.dtype))
        if beta is not None:
            output += weight @ beta.to(weight.dtype)
        ctx.save_for_backward(c, weight, gamma, beta, lift_index)
        ctx.reduce_group = reduce_group
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Any, ...]:
        c, weight, gamma, beta, lift_index = ctx.saved_tensors
        grad = grad_outputs[0].reshape(-1, weight.shape[0])  # [tokens, output]
        grad_folded = grad.t() @ c.reshape(-1, c.shape[-1])  # [output, K]
        grad_weight = grad_folded @ _lift_matrix(gamma, lift_index, c.shape[-1], weight.dtype).t()
        # gamma_i meets the column of W that it scales and the gradient of the code column it shows.
        grad_gamma = (weight.t() @ grad_folded).gather(1, lift_index.unsqueeze(1)).squeeze(1)
        grad_beta = None
        if beta is not None:
            total = grad.sum(dim=0)  # [output]
            grad_weight.addr_(total, beta.to(weight.dtype))
            grad_beta = weight.t() @ total
        for partial in (grad_gamma, grad_beta):
            # Each rank has summed over its own outputs only.
            if partial is not None and ctx.reduce_group is not None:
                dist.all_reduce(partial, group=ctx.reduce_group)
        return None, grad_weight, grad_gamma, grad_beta, None, None, None


def _lift_matrix(gamma: Tensor, lift_index: Tensor, num_bits: int, dtype: torch.dtype) -> Tensor:
    """diag(gamma) R as a dense [h, K] matrix: row i holds gamma_i in the column that i shows."""
    matrix = torch.zeros(len(lift_index), num_bits, dtype=dtype, device=gamma.device)
    return matrix.scatter_(1, lift_index.unsqueeze(1), gamma.to(dtype).unsqueeze(1))


def check_foldable(
    config: TransformerConfig, code: TokenCode | None, interface: str, implementation: str
) -> None:
    """Refuse `--fold-first-layer` where layer 1's input is not a lifted code.

    Raises
    ------
    UserError
        Naming the reason and what would work.
    """
    reason = None
    if code is None or interface in ("learned", "lowdim"):
        reason = f"--input-interface {interface} is trained; binary, gf2 and random can be folded"
    elif config.hidden_size % code.num_bits:
        reason = (
            f"--hidden-size {config.hidden_size} is not a multiple of the code width "
            f"{code.num_bits}, so the last tile is partial"
        )
    elif config.hidden_dropout:
        reason = f"--hidden-dropout {config.hidden_dropout} changes the input; use 0"
    elif implementation != "local":
        reason = "it needs --transformer-impl local"
    elif config.num_layers < 1:
        reason = "there is no layer"
    if reason:
        raise UserError(f"--fold-first-layer does not apply: {reason}")
