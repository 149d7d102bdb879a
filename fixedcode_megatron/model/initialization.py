"""Initial weights that are the same model at any parallel layout.

megatron-core draws each rank's shard from that rank's generator, so that a model's initial weights
depend on the tensor- and pipeline-parallel sizes. Here every weight is drawn whole, from a
generator seeded by (seed, global name, layer), and each rank keeps its slice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig

_OUTPUT_LAYERS = ("linear_proj.weight", "linear_fc2.weight")


def initialize_weights(
    models: Iterable[MegatronModule], config: TransformerConfig, seed: int
) -> None:
    """Re-draw every weight of the model's chunks in place; biases become 0, norms stay as built.

    Matrices use `config.init_method`, the projections back into the residual stream
    `config.output_layer_init_method`, exactly as megatron-core assigns them.
    """
    if not config.perform_initialization:
        return
    for model in models:
        for tensor in sharded_tensors(model):
            _draw(tensor, config, seed)


def sharded_tensors(model: MegatronModule) -> Iterator[ShardedTensor]:
    """The model's own parameter shards with their place in the global tensors."""
    for value in model.sharded_state_dict(metadata=_metadata()).values():
        if isinstance(value, ShardedTensor):
            yield value
        elif isinstance(value, ShardedTensorFactory):  # SwiGLU halves, for example
            parts = value.build()
            yield from parts.values() if isinstance(parts, dict) else parts


def _metadata() -> dict[str, object]:
    from megatron.core import parallel_state

    return {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}


def _draw(tensor: ShardedTensor, config: TransformerConfig, seed: int) -> None:
    data = tensor.data
    if data is None or not data.is_floating_point() or data.is_meta or "norm" in tensor.key:
        return
    axes = tensor.prepend_axis_num  # the layer axis of stacked layers comes first
    layer, offset = tensor.global_offset[:axes], tensor.global_offset[axes:]
    if tensor.key.endswith("bias"):
        with torch.no_grad():
            data.zero_()
        return
    whole = _draw_whole(
        _init_method(tensor.key, config), tensor.global_shape[axes:], f"{seed}:{tensor.key}:{layer}"
    )
    mine = tuple(slice(o, o + n) for o, n in zip(offset, tensor.local_shape, strict=True))
    with torch.no_grad():
        data.copy_(whole[mine].reshape(data.shape))


def _init_method(key: str, config: TransformerConfig) -> Callable[[torch.Tensor], object]:
    if key.endswith(_OUTPUT_LAYERS):
        return config.output_layer_init_method
    if key.startswith("embedding."):
        return getattr(config, "embedding_init_method", None) or config.init_method
    return config.init_method


def _draw_whole(
    init: Callable[[torch.Tensor], object], shape: tuple[int, ...], tag: str
) -> torch.Tensor:
    """Run megatron-core's init method (it fills in place from torch's generator) on the CPU."""
    digest = hashlib.sha256(tag.encode()).digest()
    whole = torch.empty(shape, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(int.from_bytes(digest[:7], "little"))
        init(whole)
    return whole
