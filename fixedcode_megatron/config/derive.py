"""Values that follow from other values, filled in once before the checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fixedcode_megatron.config import availability, checks_graphs

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig


ALL = 1_000_000
"""Iterations of an evaluation that reads everything: `--sft` stops where its data ends."""


def model_parallel_size(cfg: RunConfig) -> int:
    """Return the number of ranks that share one copy of the model."""
    t = cfg.transformer
    return t.tensor_model_parallel_size * t.pipeline_model_parallel_size * t.context_parallel_size


def data_parallel_size(cfg: RunConfig, world_size: int) -> int:
    """Return the number of copies of the model, at least 1."""
    return max(1, world_size // max(1, model_parallel_size(cfg)))


def fill(cfg: RunConfig, world_size: int) -> None:
    """Fill in what was left open; what was given stays, except where a notice says so."""
    _model(cfg)
    _pipeline(cfg)
    _training(cfg, world_size)
    if cfg.data.sft:
        _fine_tuning(cfg)
    if checks_graphs.wanted(cfg) and availability.transformer_impl(cfg) == "transformer_engine":
        cfg.set("use_te_rng_tracker", True)  # whose generators a replay moves on
    if cfg.data.prepare_data != "none":
        cfg.notices.append(
            f"--prepare-data {cfg.data.prepare_data}: the text is a stand-in, made here; for "
            "yours give --data-path and --tokenizer-model"
        )
    if cfg.logging.run_dir is None:
        cfg.set("run_dir", cfg.checkpoint.save or "runs/pretrain")


def _fine_tuning(cfg: RunConfig) -> None:
    """Every answer token weighs the same; an evaluation reads all; packing needs a mask.

    `--sft` as a flag may stand over the preset of a pre-training, whose data it does not read.
    """
    over_preset = cfg.given.get("sft") == "flag"
    for name, value in (("calculate_per_token_loss", True), ("eval_iters", ALL)):
        source = cfg.given.get(name)
        if source is None or (source == "preset" and over_preset):
            cfg.set(name, value)
    own = [cfg.given.get(f"{split}_data_path") == "flag" for split in ("train", "valid", "test")]
    if over_preset and any(own) and cfg.given.get("data_path") == "preset":
        cfg.set("data_path", None)
    if over_preset and cfg.given.get("prepare_data") == "preset":
        cfg.set("prepare_data", "none")
    packs_on_te = (
        cfg.data.sft_packing and availability.transformer_impl(cfg) == "transformer_engine"
    )
    if packs_on_te and cfg.model.transformer_impl == "auto" and not cfg.transformer.fp8:
        cfg.set("transformer_impl", "local")
        cfg.notices.append(
            "--transformer-impl auto stands for local: Transformer Engine would not keep packed "
            "conversations apart (--no-sft-packing does without)"
        )


def _model(cfg: RunConfig) -> None:
    t = cfg.transformer
    if cfg.model.max_position_embeddings is None:
        cfg.set("max_position_embeddings", cfg.model.seq_length)
    if t.ffn_hidden_size is None:
        cfg.set("ffn_hidden_size", _ffn_hidden_size(t.hidden_size, cfg.model.swiglu))
    if t.num_attention_heads > 0:
        if t.kv_channels is None:
            cfg.set("kv_channels", t.hidden_size // t.num_attention_heads)
        if t.num_query_groups is None:
            cfg.set("num_query_groups", t.num_attention_heads)
    if t.sequence_parallel and t.tensor_model_parallel_size == 1:
        cfg.set("sequence_parallel", False)
        cfg.notices.append("--sequence-parallel is off: with TP 1 there is nothing to share")


def _ffn_hidden_size(hidden_size: int, swiglu: bool) -> int:
    """Return Megatron-LM's default width of the MLP: the gated one has about as many weights."""
    return int((4 * hidden_size * 2 / 3) / 64) * 64 if swiglu else 4 * hidden_size


def _pipeline(cfg: RunConfig) -> None:
    """Interleaved stages overlap their messages, as Megatron-LM has it: at PP 2 they must.

    Otherwise two messages to the same peer are matched in the wrong order and training goes wrong
    without an error. Stages that are not interleaved cannot overlap them.
    """
    t = cfg.transformer
    per_stage, ranks = cfg.model.num_layers_per_virtual_pipeline_stage, _pipeline_ranks(cfg)
    if t.virtual_pipeline_model_parallel_size is None:
        if stages := stages_of_layout(cfg):
            cfg.set("virtual_pipeline_model_parallel_size", max(1, stages // ranks))
        elif per_stage:
            stages = split_layers(cfg) // (ranks * per_stage)
            cfg.set("virtual_pipeline_model_parallel_size", max(1, stages))
    if (t.virtual_pipeline_model_parallel_size or 1) > 1:
        if "overlap_p2p_comm" not in cfg.given:
            cfg.set("overlap_p2p_comm", True)
        if "batch_p2p_comm" not in cfg.given:
            cfg.set("batch_p2p_comm", not t.overlap_p2p_comm)
        return
    cfg.set("virtual_pipeline_model_parallel_size", None)
    interleaved_only = "is off: it is for interleaved pipeline stages"
    if t.overlap_p2p_comm:
        cfg.notices.append(f"--overlap-p2p-comm {interleaved_only}")
        cfg.set("overlap_p2p_comm", False)
        cfg.set("batch_p2p_comm", True)
    if cfg.ddp.align_param_gather:
        cfg.notices.append(f"--align-param-gather {interleaved_only}")
        cfg.set("align_param_gather", False)


def _pipeline_ranks(cfg: RunConfig) -> int:
    return max(1, cfg.transformer.pipeline_model_parallel_size)


def split_layers(cfg: RunConfig) -> int:
    """Return what is split evenly into stages: layers, and what else counts as one."""
    t = cfg.transformer
    return (
        t.num_layers
        + t.account_for_embedding_in_pipeline_split
        + t.account_for_loss_in_pipeline_split
    )


def stages_of_layout(cfg: RunConfig) -> int | None:
    """Return the number of stages in `--pipeline-model-parallel-layout`; None where it is no such.

    megatron-core does not conclude from it how many virtual stages a rank has.
    """
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    layout = cfg.transformer.pipeline_model_parallel_layout
    if not isinstance(layout, str):
        return None
    try:
        return PipelineParallelLayerLayout.get_num_stages_from_str(layout)
    except (ValueError, AssertionError):
        return None  # megatron-core says what is wrong with it


def _training(cfg: RunConfig, world_size: int) -> None:
    if cfg.training.global_batch_size is None:
        copies = data_parallel_size(cfg, world_size)
        cfg.set("global_batch_size", cfg.training.micro_batch_size * copies)
    if cfg.optimizer.min_lr is None:
        cfg.set("min_lr", 0.0)
    if cfg.transformer.bf16 and "grad_reduce_in_fp32" not in cfg.given:
        cfg.set("grad_reduce_in_fp32", True)  # as Megatron-LM: BF16 gradients add up in FP32
    if cfg.runtime.hang_timeout_minutes is None:
        cfg.set("hang_timeout_minutes", cfg.runtime.distributed_timeout_minutes)


_ONE_RANK = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": None,
    "sequence_parallel": False,
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
    "pipeline_model_parallel_layout": None,
    "overlap_p2p_comm": False,
    "overlap_p2p_comm_warmup_flush": False,
    "batch_p2p_comm": True,
    "defer_embedding_wgrad_compute": False,
    "tp_comm_overlap": False,
    "num_distributed_optimizer_instances": 1,
}


def on_one_rank(cfg: RunConfig) -> None:
    """Change the layout to a single rank, to build the whole model in one process."""
    for name, value in _ONE_RANK.items():
        cfg.set(name, value)
