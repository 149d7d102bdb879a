"""megatron-core's mixture-of-experts layers without Transformer Engine.

Each rank of the expert-parallel group holds some of the experts; tokens travel to those that the
router chose for them, and back. The experts are ordinary MLPs, one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig


def has_experts(config: TransformerConfig, layer: int) -> bool:
    """Whether a layer (counted from 0) is a mixture of experts, by `--moe-layer-freq`."""
    if config.num_moe_experts is None:
        return False
    every = config.moe_layer_freq
    return layer % every == 0 if isinstance(every, int) else bool(every[layer])


def install_fixes() -> None:
    """Cure two places where megatron-core takes Transformer Engine, or a CUDA tensor, for granted.

    Without Transformer Engine the router looks for a name that was never imported. And the sizes
    by which tokens are split stay tensors where they are on the CPU already.
    """
    import megatron.core.transformer.moe.moe_utils as utils
    import megatron.core.transformer.moe.token_dispatcher as dispatcher

    if not hasattr(utils, "te_general_gemm"):
        utils.te_general_gemm = None
    if not torch.cuda.is_available():
        utils.maybe_move_tensor_to_cpu = dispatcher.maybe_move_tensor_to_cpu = _on_cpu


def _on_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """megatron-core's function for a tensor that is on the CPU; others are handed through."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor
