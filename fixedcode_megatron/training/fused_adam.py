"""AdamW with Transformer Engine's state layout, for machines without Transformer Engine and apex.

megatron-core's distributed optimizer checkpoints Adam's state in the layout of Transformer Engine's
FusedAdam (one `step` per parameter group). With torch's own Adam it saves or restores a wrong step.
`install_if_needed` puts this class in its place, so that checkpoints written here and there agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class FusedAdam(torch.optim.Optimizer):
    """Adam or AdamW on torch's fused kernels, with TE's FusedAdam interface and state layout.

    Parameters
    ----------
    params
        Parameters or groups, on any device that torch's fused Adam supports (CPU, CUDA).
    adam_w_mode
        True for decoupled weight decay (AdamW), False for L2 regularisation.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        **_unsupported: Any,
    ) -> None:
        if not bias_correction:
            raise ValueError("FusedAdam needs bias_correction=True")
        defaults = dict(lr=lr, bias_correction=True, betas=betas, eps=eps)
        super().__init__(params, {**defaults, "weight_decay": weight_decay})
        self.adam_w_mode = adam_w_mode

    @torch.no_grad()
    def step(self, closure: Any = None, **_ignored: Any) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; group['step'] counts the updates."""
        kernel = torch._fused_adamw_ if self.adam_w_mode else torch._fused_adam_
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = group.get("step", 0) + 1
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            grads = [p.grad.to(p.dtype) for p in params if p.grad is not None]
            states = [self._state(p) for p in params]
            # The kernel wants one step tensor per parameter, on the parameter's device.
            steps = [torch.full((), float(group["step"]), device=params[0].device)] * len(params)
            beta1, beta2 = group["betas"]
            kernel(
                params,
                grads,
                [s["exp_avg"] for s in states],
                [s["exp_avg_sq"] for s in states],
                [],
                steps,
                amsgrad=False,
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
                grad_scale=None,
                found_inf=None,
            )

    def _state(self, param: torch.Tensor) -> dict[str, torch.Tensor]:
        state = self.state[param]
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(param)
            state["exp_avg_sq"] = torch.zeros_like(param)
        return state


def install_if_needed() -> bool:
    """Give megatron-core this Adam where it has found neither Transformer Engine's nor apex's.

    Returns
    -------
    bool
        Whether it was (or had been) installed.
    """
    import megatron.core.optimizer as mcore_optimizer
    import megatron.core.optimizer.distrib_optimizer as distributed

    if mcore_optimizer.Adam is FusedAdam:
        return True
    if distributed.HAVE_APEX_OR_TE:
        return False
    mcore_optimizer.Adam = distributed.Adam = FusedAdam
    mcore_optimizer.USING_PYTORCH_OPTIMIZER = False
    distributed.HAVE_APEX_OR_TE = distributed.USING_TE_OPTIMIZER = True
    return True
