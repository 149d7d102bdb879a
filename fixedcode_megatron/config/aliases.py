"""Megatron-LM's flags that are not simply the name of one of our options.

Four tables, so that a published launch script's flags parse: flags with another name or a negated
meaning (`ALIASES`), flags without effect here (`IGNORED`), flags (`REFUSED`, `REFUSED_PREFIXES`)
and values (`REFUSED_VALUES`) that ask for what this project does not do. Names are written in
snake_case; ``--no-x`` for an option ``x`` needs no entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fixedcode_megatron.config.options import flag_of

TAKES_VALUE = object()


@dataclass(frozen=True)
class Alias:
    """Another flag for some options: it sets ``const``, or hands its value on."""

    targets: tuple[str, ...]
    const: Any = TAKES_VALUE


def _sets(value: Any, *targets: str) -> Alias:
    return Alias(targets, value)


def _renames(*targets: str) -> Alias:
    return Alias(targets)


_USUAL = {"fp8": "fp8_format", "fp4": "fp4_format", "num_moe_experts": "num_experts"}


def usual_flag(name: str) -> str:
    """Return the flag of a field for messages: the one that Megatron-LM's scripts have."""
    return flag_of(_USUAL.get(name, name))


ALIASES: dict[str, Alias] = {
    "accumulate_allreduce_grads_in_fp32": _sets(True, "grad_reduce_in_fp32"),
    "apply_layernorm_1p": _sets(True, "layernorm_zero_centered_gamma"),
    "ddp_average_in_collective": _sets(True, "average_in_collective"),
    "ddp_bucket_size": _renames("bucket_size"),
    "ddp_num_buckets": _renames("num_buckets"),
    "ddp_pad_buckets_for_high_nccl_busbw": _sets(True, "pad_buckets_for_high_nccl_busbw"),
    "ddp_reduce_scatter_with_fp32_accumulation": _sets(
        True, "reduce_scatter_with_fp32_accumulation"
    ),
    "decoder_first_pipeline_num_layers": _renames("num_layers_in_first_pipeline_stage"),
    "decoder_last_pipeline_num_layers": _renames("num_layers_in_last_pipeline_stage"),
    "disable_bias_linear": _sets(False, "add_bias_linear"),
    "disable_tp_comm_bulk_dgrad": _sets(False, "tp_comm_bulk_dgrad"),
    "disable_tp_comm_bulk_wgrad": _sets(False, "tp_comm_bulk_wgrad"),
    "disable_tp_comm_overlap_ag": _sets(False, "tp_comm_overlap_ag"),
    "disable_tp_comm_overlap_rs": _sets(False, "tp_comm_overlap_rs"),
    "disable_tp_comm_split_ag": _sets(False, "tp_comm_split_ag"),
    "disable_tp_comm_split_rs": _sets(False, "tp_comm_split_rs"),
    "dist_ckpt_format": _renames("ckpt_format"),
    "encoder_num_layers": _renames("num_layers"),
    "encoder_seq_length": _renames("seq_length"),
    "fp4_format": _renames("fp4"),
    "fp8_format": _renames("fp8"),
    "fp8_param_gather": _sets(True, "fp8_param_gather", "fp8_param"),
    "grad_reduce_in_bf16": _sets(False, "grad_reduce_in_fp32"),
    "microbatch_group_size_per_virtual_pipeline_stage": _renames(
        "microbatch_group_size_per_vp_stage"
    ),
    "muon_no_split_qkv": _sets(False, "muon_split_qkv"),
    "num_experts": _renames("num_moe_experts"),
    "no_barrier_with_level_1_timing": _sets(False, "barrier_with_L1_time"),
    "no_bias_gelu_fusion": _sets(False, "bias_activation_fusion"),
    "no_bias_swiglu_fusion": _sets(False, "bias_activation_fusion"),
    "no_fp8_wgrad": _sets(False, "fp8_wgrad"),
    "no_initialization": _sets(False, "perform_initialization"),
    "no_overlap_p2p_communication": _sets(False, "overlap_p2p_comm"),
    "no_position_embedding": _sets("none", "position_embedding_type"),
    "no_query_key_layer_scaling": _sets(False, "apply_query_key_layer_scaling"),
    "no_rope_fusion": _sets(False, "apply_rope_fusion"),
    "norm_epsilon": _renames("layernorm_epsilon"),
    "num_virtual_stages_per_pipeline_rank": _renames("virtual_pipeline_model_parallel_size"),
    "overlap_p2p_communication": _sets(True, "overlap_p2p_comm"),
    "overlap_p2p_communication_warmup_flush": _sets(True, "overlap_p2p_comm_warmup_flush"),
    "recompute_activations": _sets("selective", "recompute_granularity"),
    "te_rng_tracker": _sets(True, "use_te_rng_tracker"),
    "use_flash_attn": _sets("flash", "attention_backend"),
    "use_nccl_ub": _sets(True, "nccl_ub"),
    "use_rotary_position_embeddings": _sets("rope", "position_embedding_type"),
    "wandb_name": _renames("wandb_exp_name"),
}

_ALWAYS = "this is always so here"
_LOGS = "what is logged does not depend on it"
_READER = "data is read in the training process"
_MEMORY = "memory is left to PyTorch and Python"
_TOKENIZER = "the tokenizer's own files decide it"
_CHECKPOINT = "checkpoints are always written and read in megatron-core's parallel way"
_CHECKPOINT_WRITER = "--async-save writes in a fork of each rank"
_WATCHERS = "this watcher of NVIDIA's is not built in"

IGNORED: dict[str, str] = {
    "adlr_autoresume": _WATCHERS,
    "adlr_autoresume_interval": _WATCHERS,
    "async_ckpt_cpu_priority": _CHECKPOINT_WRITER,
    "async_ckpt_io_priority": _CHECKPOINT_WRITER,
    "async_ckpt_use_cpu_shm": _CHECKPOINT_WRITER,
    "async_strategy": _CHECKPOINT_WRITER,
    "auto_detect_ckpt_format": _CHECKPOINT,
    "ckpt_assume_constant_structure": _CHECKPOINT,
    "ckpt_fully_parallel_load": _CHECKPOINT,
    "ckpt_fully_parallel_save": _CHECKPOINT,
    "create_attention_mask_in_dataloader": "the mask is causal and never materialised",
    "dataloader_type": _READER,
    "delay_grad_reduce": "it is left to megatron-core",
    "delay_param_gather": "it is left to megatron-core",
    "disable_msc": "files are read and written through the file system",
    "disable_straggler_on_startup": _WATCHERS,
    "dist_ckpt_strictness": "a checkpoint that does not fit is always refused",
    "distributed_timeout_seconds_after_init": "--distributed-timeout-minutes holds throughout",
    "empty_unused_memory_level": _MEMORY,
    "enable_experimental": "megatron-core's switches are set one by one",
    "enable_one_logger": _WATCHERS,
    "group_query_attention": "--num-query-groups alone turns it on",
    "lazy_mpu_init": "process groups are made at start",
    "legacy_tokenizer": _TOKENIZER,
    "local_rank": "torchrun's environment says it",
    "log_batch_size_to_tensorboard": _LOGS,
    "log_device_memory_used": _LOGS,
    "log_learning_rate_to_tensorboard": _LOGS,
    "log_loss_scale_to_tensorboard": _LOGS,
    "log_memory_interval": _LOGS,
    "log_memory_to_tensorboard": _LOGS,
    "log_params_norm": _LOGS,
    "log_progress": _LOGS,
    "log_straggler": _WATCHERS,
    "log_throughput": _LOGS,
    "log_timers_to_tensorboard": _LOGS,
    "log_validation_ppl_to_tensorboard": _LOGS,
    "log_world_size_to_tensorboard": _LOGS,
    "logging_level": _LOGS,
    "manual_gc": _MEMORY,
    "manual_gc_eval": _MEMORY,
    "manual_gc_interval": _MEMORY,
    "no_async_tensor_model_parallel_allreduce": "it is left to megatron-core",
    "no_ckpt_fully_parallel_save": _CHECKPOINT,
    "no_create_attention_mask_in_dataloader": "the mask is causal and never materialised",
    "no_data_sharding": _READER,
    "no_one_logger": _WATCHERS,
    "num_dataset_builder_threads": _READER,
    "num_workers": _READER,
    "one_logger_project": _WATCHERS,
    "one_logger_run_name": _WATCHERS,
    "rerun_mode": _WATCHERS,
    "tensorboard_log_interval": "--log-interval holds for all logs",
    "tensorboard_queue_size": _LOGS,
    "timing_log_level": _LOGS,
    "timing_log_option": _LOGS,
    "tokenizer_hf_use_fast": _TOKENIZER,
    "train_sync_interval": "ranks stay in step on their own",
    "trust_remote_code": _TOKENIZER,
    "use_cpu_initialization": "weights are the same at any layout without it",
    "use_dist_ckpt": _CHECKPOINT,
    "use_mcore_models": _ALWAYS,
    "use_mpi": "the launcher's environment says the ranks",
    "use_persistent_ckpt_worker": _CHECKPOINT_WRITER,
    "use_tp_pp_dp_mapping": "ranks are laid out in megatron-core's default order",
    "wandb_save_dir": "it goes to --run-dir",
}
"""Flags that a script may carry and that change nothing here, with the reason."""

_MOE = "this setting of mixtures of experts is not supported"
_FAMILY = "this project trains decoder-only GPT models"
_FSDP = "FSDP is not supported: use --use-distributed-optimizer to shard the optimizer's state"
_INFERENCE = "inference settings do not belong to training: see tools/generate.py"
_MUP = "maximal-update parametrisation is not supported: it scales a table at the input"
_OPTIMIZERS = "the optimizers are adam, sgd and muon"

REFUSED: dict[str, str] = {
    "batch_size": "use --micro-batch-size and --global-batch-size",
    "checkpoint_activations": "use --recompute-activations, or --recompute-granularity full",
    "ckpt_convert_format": "convert with tools/convert_checkpoint.py",
    "data_args_path": "give the prefixes with --data-path",
    "data_parallel_sharding_strategy": _FSDP,
    "decoder_seq_length": _FAMILY,
    "encoder_pipeline_model_parallel_size": _FAMILY,
    "encoder_tensor_model_parallel_size": _FAMILY,
    "experimental_attention_variant": "sparse attention variants are not supported",
    "fim_data": "fill-in-the-middle is not supported",
    "flash_decode": _INFERENCE,
    "fp16_lm_cross_entropy": "the loss is computed in FP32",
    "heterogeneous_block_specs": _FAMILY,
    "init_method_xavier_uniform": "weights are normal: use --init-method-std",
    "is_hybrid_model": _FAMILY,
    "mlp_chunks_for_prefill": _INFERENCE,
    "mock_data": "train on real data: --data-path PREFIX, or --prepare-data python-library",
    "model_parallel_size": "use --tensor-model-parallel-size",
    "multi_latent_attention": "multi-latent attention is not supported",
    "nccl_all_reduce_for_prefill": _INFERENCE,
    "onnx_safe": "the activation is GELU, --swiglu or --squared-relu",
    "openai_gelu": "the activation is GELU, --swiglu or --squared-relu",
    "outer_dp_sharding_strategy": _FSDP,
    "per_split_data_args_path": "use --train-data-path, --valid-data-path, --test-data-path",
    "quick_geglu": "the activation is GELU, --swiglu or --squared-relu",
    "rope_scaling_factor": "scaling of rotary frequencies is not supported",
    "rotary_seq_len_interpolation_factor": "position interpolation is not supported",
    "spec": "layers are chosen with --transformer-impl",
    "use_checkpoint_args": "give --config RUN_DIR/config.yaml of the run instead",
    "use_custom_fsdp": _FSDP,
    "use_inference_optimized_layers": _INFERENCE,
    "use_legacy_models": "only megatron-core's models are supported: leave it out",
    "use_megatron_fsdp": _FSDP,
    "use_mup": _MUP,
    "use_rope_scaling": "scaling of rotary frequencies is not supported",
    "use_torch_fsdp2": _FSDP,
    "use_z_loss": "a loss on the softmax's normaliser is not supported",
    "warmup": "use --lr-warmup-fraction",
    "yaml_cfg": "use --config PRESET",
}
"""Flags that would change the result if they were ignored, with the reason."""

REFUSED_PREFIXES: dict[str, str] = {
    "adaptive_muon_": _OPTIMIZERS,
    "bert_": _FAMILY,
    "dino_": _FAMILY,
    "dsa_": "sparse attention variants are not supported",
    "fsdp_": _FSDP,
    "grpo_": "reinforcement learning is not supported",
    "hetereogenous_": _FAMILY,
    "heterogeneous_": _FAMILY,
    "hierarchical_": "hierarchical context parallelism is not supported",
    "hybrid_": _FAMILY,
    "inference_": _INFERENCE,
    "linear_": "linear attention is not supported",
    "lion_": _OPTIMIZERS,
    "mamba_": _FAMILY,
    "megatron_fsdp_": _FSDP,
    "moe_": _MOE,
    "mrope_": "this project trains on text alone",
    "mtp_": "multi-token prediction is not supported",
    "mup_": _MUP,
    "retro_": _FAMILY,
    "rl_": "reinforcement learning is not supported",
    "soap_": _OPTIMIZERS,
    "use_mamba_": _FAMILY,
    "vision_": _FAMILY,
}

OFFERED: frozenset[str] = frozenset(
    {
        "moe_aux_loss_coeff",
        "moe_ffn_hidden_size",
        "moe_grouped_gemm",
        "moe_layer_freq",
        "moe_router_dtype",
        "moe_router_load_balancing_type",
        "moe_router_pre_softmax",
        "moe_router_score_function",
        "moe_router_topk",
        "moe_router_topk_scaling_factor",
        "moe_shared_expert_intermediate_size",
        "moe_token_dispatcher_type",
        "moe_z_loss_coeff",
    }
)
"""Fields that are offered although their prefix is not."""

_CHAT_TEMPLATE = "put the format's chat template beside the tokenizer and use default"
_TO_HF = "convert it to a Hugging Face tokenizer.json and use HuggingFaceTokenizer"

REFUSED_VALUES: dict[tuple[str, str], str] = {
    ("ckpt_format", "torch"): "checkpoints are of the format torch_dist",
    ("muon_scalar_optimizer", "lion"): "what is no matrix is left to adam",
    ("ckpt_format", "zarr"): "checkpoints are of the format torch_dist",
    ("tokenizer_type", "Llama2Tokenizer"): _TO_HF,
    ("sft_tokenizer_prompt_format", "nemotron-h-aligned"): _CHAT_TEMPLATE,
    ("sft_tokenizer_prompt_format", "nemotron-nano-v2"): _CHAT_TEMPLATE,
    ("position_embedding_type", "learned_absolute"): (
        "a trained position table sits in the input embedding, which fixed interfaces do not have: "
        "use rope or none"
    ),
    ("position_embedding_type", "mrope"): "use rope or none",
    ("position_embedding_type", "yarn"): "use rope or none",
    ("position_embedding_type", "relative"): "use rope or none",
    ("dataloader_type", "cyclic"): "samples come in the dataset's own order: use single",
    ("dataloader_type", "external"): "samples come in the dataset's own order: use single",
}


def ignored(name: str) -> str | None:
    """Return why a flag or its negation is ignored, or None."""
    return IGNORED.get(name) or IGNORED.get(name.removeprefix("no_"))


def refused_prefix(name: str) -> str | None:
    """Return why a megatron-core field of this name is not offered, or None."""
    if name in REFUSED:
        return REFUSED[name]
    if name in OFFERED:
        return None
    return next((why for prefix, why in REFUSED_PREFIXES.items() if name.startswith(prefix)), None)
