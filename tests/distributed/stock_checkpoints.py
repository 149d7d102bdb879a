"""Checkpoints of Megatron-LM itself: written and read without any of our code for it.

megatron-core's wheels from 0.18 on hold Megatron-LM's own `megatron.training.checkpointing`, which
is then used; before, its state dict is put together here from the same parts.
"""

from __future__ import annotations

import argparse
import importlib.util
import typing
from pathlib import Path
from typing import Any

import torch

from tests.distributed import stock

HAS_MEGATRON_LM = importlib.util.find_spec("megatron.training") is not None


def _megatron_lm() -> Any:
    """Megatron-LM's module, on a Python without `typing.override` (3.11), too."""
    import typing_extensions

    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    from megatron.training import checkpointing

    return checkpointing


def _arguments(cfg: Any, folder: Path, **more: Any) -> argparse.Namespace:
    """Those of Megatron-LM's arguments that its checkpointing reads."""
    t = cfg.transformer
    return argparse.Namespace(
        num_layers=t.num_layers,
        hidden_size=t.hidden_size,
        ffn_hidden_size=t.ffn_hidden_size,
        num_attention_heads=t.num_attention_heads,
        group_query_attention=False,
        num_query_groups=1,
        kv_channels=t.kv_channels,
        swiglu=cfg.model.swiglu,
        normalization="RMSNorm",
        add_bias_linear=False,
        add_qkv_bias=False,
        qk_layernorm=False,
        norm_epsilon=t.layernorm_epsilon,
        apply_layernorm_1p=False,
        untie_embeddings_and_output_weights=True,
        position_embedding_type="rope",
        add_position_embedding=True,
        padded_vocab_size=512,
        tensor_model_parallel_size=t.tensor_model_parallel_size,
        pipeline_model_parallel_size=t.pipeline_model_parallel_size,
        save=str(folder),
        load=str(folder),
        ckpt_format="torch_dist",
        use_dist_ckpt=True,
        no_save_optim=True,
        no_save_rng=True,
        iteration=7,
        **more,
    )


def _shuffled(argv: list[str]) -> tuple[Any, Any]:
    """The stock model with weights that no initialisation draws, the same at any layout."""
    cfg, _, model = stock._build(argv, attention="megatron")
    for parameter in model.parameters():
        parameter.data.mul_(3).add_(0.01)
    return cfg, model


def _metadata() -> dict[str, Any]:
    from megatron.core import parallel_state

    return {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}


def save(argv: list[str], folder: Path) -> dict[str, torch.Tensor]:
    """Write a checkpoint of a stock GPT as Megatron-LM does; returns its parameters."""
    from megatron.core import dist_checkpointing

    cfg, model = _shuffled(argv)
    args = _arguments(cfg, folder)
    if HAS_MEGATRON_LM:
        options = dict(iteration=args.iteration, model_sd_kwargs=dict(metadata=_metadata()))
        state = _megatron_lm().generate_state_dict(args, [model], None, None, None, **options)
        more = {"async_strategy": "mcore"}
    else:
        state = {"args": args, "checkpoint_version": 3.0, "iteration": args.iteration}
        state["model"] = model.sharded_state_dict(metadata=_metadata())
        more = {}
    state["num_floating_point_operations_so_far"] = 0.0
    path = folder / f"iter_{args.iteration:07d}"
    path.mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save(state, str(path), content_metadata={}, **more)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(args.iteration))
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def load(argv: list[str], folder: Path) -> dict[str, torch.Tensor]:
    """Read the newest checkpoint of `folder` into a stock GPT as Megatron-LM does."""
    from megatron.core import dist_checkpointing

    cfg, model = _shuffled(argv)
    if HAS_MEGATRON_LM:
        checkpointing = _megatron_lm()
        from megatron.training import global_vars

        global_vars.set_args(_arguments(cfg, folder, **_LOADING))
        assert checkpointing.load_checkpoint([model], None, None) == (0, 0)
    else:
        iteration = int((folder / "latest_checkpointed_iteration.txt").read_text())
        state = {"model": model.sharded_state_dict(metadata=_metadata())}
        loaded = dist_checkpointing.load(state, str(folder / f"iter_{iteration:07d}"))
        assert loaded["checkpoint_version"] >= 3.0  # else Megatron-LM permutes rows of QKV
        model.load_state_dict(loaded["model"])
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def integrity_problem(path: Path) -> str | None:
    """What megatron-core's own comparison of checksums says (nothing before 0.18)."""
    from megatron.core.dist_checkpointing import validation

    try:
        getattr(validation, "verify_integrity_manifest", lambda _: None)(str(path))
    except Exception as error:
        return str(error)
    return None


_LOADING: dict[str, Any] = dict(
    pretrained_checkpoint=None,
    auto_detect_ckpt_format=False,
    finetune=True,
    no_load_optim=True,
    no_load_rng=True,
    non_persistent_global_ckpt_dir=None,
    non_persistent_ckpt_type=None,
    ckpt_step=None,
    exit_on_missing_checkpoint=True,
    use_distributed_optimizer=False,
    data_parallel_random_init=False,
    ckpt_assume_constant_structure=False,
    stream_ckpt_dequant=False,
    ckpt_fully_parallel_load=False,
    ckpt_load_validate_sharding_integrity=True,
    dist_ckpt_strictness="assume_ok_unexpected",
    verify_integrity=False,
    vocab_file=None,
    phase_transition_iterations=None,
    fp16=False,
    bf16=False,
    hybrid_layer_pattern=None,
    override_ckpt_iteration=None,
)
