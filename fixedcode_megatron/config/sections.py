"""The sections of the tree that are ours; names follow Megatron-LM's.

Model shape, DDP and optimizer fields are not listed here: they come from the installed
megatron-core (see `megatron_fields`).
"""

# `option` returns a dataclass field, which the linter cannot see.
# ruff: noqa: RUF009

from __future__ import annotations

from dataclasses import dataclass

from fixedcode_megatron.config.options import option

INPUT_INTERFACES = ("learned", "binary", "gf2", "random", "lowdim")
TOKENIZER_TYPES = (
    "HuggingFaceTokenizer",
    "GPT2BPETokenizer",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "TikTokenizer",
    "ByteLevelTokenizer",
    "NullTokenizer",
)
FIXED_INTERFACES = ("binary", "gf2", "random")
"""Interfaces that own no parameter."""


@dataclass(kw_only=True)
class InputConfig:
    """How token ids become input vectors."""

    input_interface: str = option(
        "binary",
        "learned: Megatron's trainable table; binary: the id's bits; gf2: those bits times an "
        "invertible matrix over GF(2); random: fixed random values of the code's width; lowdim: a "
        "trainable table of the code's width. All but learned are repeated up to the model's width",
        choices=INPUT_INTERFACES,
    )
    code_bits: int | None = option(
        None, "code width K; default: the least that tells all ids apart, (V-1).bit_length()"
    )
    code_scale: float = option(1.0, "value of an element is offset + scale * bit")
    code_offset: float = option(0.0, "value of an element is offset + scale * bit")
    code_seed: int = option(12345, "seed of the gf2 matrix or of the random code")
    code_matrix: str | None = option(
        None, "file with a K x K matrix of 0 and 1 (.npy or text) to use as the gf2 matrix"
    )
    code_shift: int = option(
        0, "constant that is XORed to the code, as a number (0x1F is read too)"
    )
    code_lift: str = option(
        "tile",
        "tile: element i shows bit i mod K; interleave: element i shows bit i // (width / K)",
        choices=("tile", "interleave"),
    )
    code_allow_partial_tile: bool = option(
        False, "let the last repetition be cut short when the width is not a multiple of K"
    )
    fold_first_layer: bool = option(
        False,
        "compute layer 1's norm and QKV projection through the K columns of a fixed code: the same "
        "function and gradients for a fraction of the work (see docs/folding.md)",
    )
    check_token_ids: bool = option(
        False, "raise on ids outside the vocabulary at the input (costs a synchronisation)"
    )


@dataclass(kw_only=True)
class ModelConfig:
    """Model settings that megatron-core's TransformerConfig does not hold."""

    seq_length: int = option(1024, "tokens a sample")
    max_position_embeddings: int | None = option(
        None, "longest sequence the model is built for; default: --seq-length"
    )
    position_embedding_type: str = option(
        "rope", "rotary positions, or none at all", choices=("rope", "none")
    )
    rotary_base: int = option(10000, "base of the rotary frequencies")
    rotary_percent: float = option(1.0, "share of each head that is rotated")
    swiglu: bool = option(False, "SiLU-gated MLP of three matrices in place of GELU and two")
    squared_relu: bool = option(False, "squared ReLU in place of GELU")
    untie_embeddings_and_output_weights: bool = option(
        True,
        "a head of its own; fixed interfaces have no table to tie it to. Megatron-LM's default is "
        "the opposite, which only --input-interface learned can have",
    )
    fused_linear_cross_entropy: bool = option(
        True,
        "compute output layer and loss a chunk of tokens at a time, so that the logits never exist "
        "whole; off: megatron-core's output layer and cross entropy",
    )
    vocab_size: int | None = option(None, "number of token ids; default: what the tokenizer says")
    make_vocab_size_divisible_by: int = option(
        128, "round the head's and the table's rows up to a multiple of this times TP"
    )
    num_layers_per_virtual_pipeline_stage: int | None = option(
        None,
        "layers of each virtual stage; says the same as --virtual-pipeline-model-parallel-size",
    )
    transformer_impl: str = option(
        "auto",
        "layers by Transformer Engine or by plain torch; auto: the former where it is installed "
        "and a GPU is there",
        choices=("auto", "transformer_engine", "local"),
    )
    precision: str | None = option(
        None,
        "a recipe by name, for --bf16, --fp8-format, --fp8-recipe and the like (docs/gpu.md)",
        choices=("fp32", "bf16", "fp8_delayed", "fp8_current", "fp8_blockwise"),
    )


@dataclass(kw_only=True)
class DataConfig:
    """Where tokens come from."""

    data_path: list[str] | None = option(
        None, "PREFIX, or WEIGHT PREFIX pairs, of .bin/.idx files, split by --split"
    )
    train_data_path: list[str] | None = option(None, "as --data-path, for training alone")
    valid_data_path: list[str] | None = option(None, "as --data-path, for validation alone")
    test_data_path: list[str] | None = option(None, "as --data-path, for the test alone")
    split: str = option("969,30,1", "shares of documents for training, validation and test")
    data_cache_path: str | None = option(None, "folder for the sample indices")
    mmap_bin_files: bool = option(True, "map the .bin files into memory instead of reading them")
    tokenizer_type: str | None = option(
        None, "kind of tokenizer the data was made with", choices=TOKENIZER_TYPES
    )
    tokenizer_model: str | None = option(None, "tokenizer: a folder, file or hub name")
    vocab_file: str | None = option(None, "vocab.json of a GPT-2 style tokenizer")
    merge_file: str | None = option(None, "merges.txt of a GPT-2 style tokenizer")
    tiktoken_pattern: str | None = option(None, "how a TikTokenizer splits; default: by file name")
    tiktoken_special_tokens: list[str] | None = option(None, "special tokens of a TikTokenizer")
    reset_position_ids: bool = option(False, "restart positions after each end of document")
    reset_attention_mask: bool = option(False, "no attention across an end of document")
    eod_mask_loss: bool = option(False, "no loss on the end-of-document token")
    sft: bool = option(
        False,
        "supervised fine-tuning: the data paths are files of JSON lines, each a conversation, and "
        "answers alone count in the loss (see docs/sft.md)",
    )
    sft_tokenizer_prompt_format: str = option(
        "auto",
        "how --sft writes conversations. default: by the tokenizer's chat template; plain: with "
        "roles as titles; identity: contents alone; auto: default where there is a template, else "
        "plain",
        choices=("auto", "default", "plain", "identity"),
    )
    sft_packing: bool = option(
        True, "let --sft put several conversations into a sample, kept apart by the attention mask"
    )
    prepare_data: str = option(
        "none",
        "python-library: if the data is not there yet, make it from what every Python has (its "
        "documentation, docstrings and sources), with a tokenizer trained on it",
        choices=("none", "python-library"),
    )


@dataclass(kw_only=True)
class TrainingConfig:
    """Batch sizes, length, evaluation and the schedules of learning rate and weight decay."""

    micro_batch_size: int = option(1, "samples a rank works on at once")
    global_batch_size: int | None = option(
        None, "samples an iteration; default: --micro-batch-size times data-parallel size"
    )
    rampup_batch_size: list[int] | None = option(
        None, "START INCREMENT SAMPLES: grow the global batch size over the first samples"
    )
    decrease_batch_size_if_needed: bool = option(
        False, "round the global batch size down to what the ranks can share"
    )
    train_iters: int | None = option(None, "length of the run in iterations")
    train_samples: int | None = option(None, "length of the run in samples")
    eval_interval: int | None = option(1000, "iterations between evaluations")
    eval_iters: int = option(
        100,
        "iterations an evaluation takes; 0 turns it off. With --sft the most it takes: it ends "
        "where its data does, and by default reads all",
    )
    skip_train: bool = option(False, "evaluate only")
    iterations_to_skip: list[int] = option(
        [],
        "iterations, as log lines number them, whose data is read and left out: no forward pass, "
        "no update (Megatron-LM before 0.18 counted from 0)",
    )
    check_for_nan_in_loss_and_grad: bool = option(
        True,
        "leave out an update whose gradients are not finite on some rank, and refuse to save a "
        "state that is not",
    )
    check_for_spiky_loss: bool = option(
        False, "leave out an update whose loss is a spike (see --spike-sigmas)"
    )
    check_for_large_grads: bool = option(
        False, "leave out an update whose gradient norm is a spike (see --spike-sigmas)"
    )
    spike_sigmas: float = option(
        6.0,
        "a spike is this many standard deviations above the mean of the last 128 iterations that "
        "were applied",
    )
    max_consecutive_skips: int = option(
        5, "end the run when so many updates in a row were left out for such a reason"
    )
    exit_interval: int | None = option(None, "save and stop when the iteration divides by this")
    exit_duration_in_mins: float | None = option(None, "save and stop after this many minutes")
    exit_signal_handler: bool = option(True, "save and stop on SIGTERM and Ctrl-C")
    seed: int = option(1234, "seed of initial weights, data order and dropout")
    lr_decay_style: str = option(
        "linear",
        "how the learning rate falls after warm-up",
        choices=("constant", "linear", "cosine", "inverse-square-root", "WSD"),
    )
    lr_decay_iters: int | None = option(None, "iterations to decay over; default: --train-iters")
    lr_decay_samples: int | None = option(None, "the same in samples, for --train-samples")
    lr_warmup_iters: int = option(0, "iterations of linear warm-up")
    lr_warmup_samples: int = option(0, "samples of linear warm-up")
    lr_warmup_fraction: float | None = option(None, "share of the decay length to warm up over")
    lr_warmup_init: float = option(0.0, "learning rate at the start of warm-up")
    lr_wsd_decay_style: str = option(
        "exponential",
        "how the last phase of WSD falls",
        choices=("exponential", "linear", "cosine", "minus_sqrt"),
    )
    lr_wsd_decay_iters: int | None = option(None, "iterations of the last phase of WSD")
    lr_wsd_decay_samples: int | None = option(None, "the same in samples")
    start_weight_decay: float | None = option(None, "first weight decay, when it changes")
    end_weight_decay: float | None = option(None, "last weight decay, when it changes")
    weight_decay_incr_style: str = option(
        "constant", "how weight decay changes", choices=("constant", "linear", "cosine")
    )
    override_opt_param_scheduler: bool = option(
        False, "on resume, take the schedule from the flags, not from the checkpoint"
    )
    use_checkpoint_opt_param_scheduler: bool = option(
        False, "on resume, take the schedule from the checkpoint, whatever the flags say"
    )


@dataclass(kw_only=True)
class CheckpointConfig:
    """Saving and loading."""

    save: str | None = option(None, "folder to save checkpoints to")
    load: str | None = option(
        None,
        "folder to load the latest checkpoint from. One without a checkpoint is an error, unless "
        "it is the same as --save: then the run starts from scratch and continues next time",
    )
    save_interval: int | None = option(
        None, "iterations between checkpoints; the last iteration is always saved"
    )
    async_save: bool = option(
        False, "write a checkpoint in the background, as it was when it was due, and train on"
    )
    keep_last_checkpoints: int | None = option(None, "delete all but this many newest checkpoints")
    save_retain_interval: int | None = option(
        None,
        "keep checkpoints of iterations that divide by this for good, and of the others the newest "
        "(--keep-last-checkpoints of them); a multiple of --save-interval",
    )
    verify_integrity: bool = option(
        False,
        "save a checksum of each file, and compare it before loading (both read the files again)",
    )
    ckpt_step: int | None = option(None, "load the checkpoint of this iteration, not the latest")
    finetune: bool = option(False, "load weights only and start at iteration 0")
    pretrained_checkpoint: str | None = option(
        None,
        "folder of checkpoints, or one of them, to take weights from (as --finetune does) while "
        "--load holds no checkpoint: the same command starts a fine-tuning and continues it",
    )
    allow_input_interface_change: bool = option(
        False,
        "let --finetune and --pretrained-checkpoint take weights that were trained with another "
        "--input-interface or token code: all but the input table, which is drawn anew if there is "
        "one",
    )
    no_load_optim: bool = option(False, "do not load the optimizer's state")
    no_load_rng: bool = option(False, "do not load the random states")
    no_save_optim: bool = option(False, "do not save the optimizer's state")
    no_save_rng: bool = option(False, "do not save the random states")
    exit_on_missing_checkpoint: bool = option(
        False, "a --load folder without a checkpoint is an error even if it is the --save folder"
    )
    ckpt_format: str = option("torch_dist", "format on disk", choices=("torch_dist",))


@dataclass(kw_only=True)
class LoggingConfig:
    """What is reported, and where."""

    log_interval: int = option(100, "iterations between log lines")
    run_dir: str | None = option(
        None, "folder of the resolved config and metrics; default: --save, else runs/pretrain"
    )
    tensorboard_dir: str | None = option(None, "write TensorBoard events here")
    wandb_project: str | None = option(None, "report to this Weights & Biases project")
    wandb_exp_name: str | None = option(None, "name of the run there")
    wandb_entity: str | None = option(None, "team there")
    profile: bool = option(False, "profile the iterations of --profile-step-start to -end")
    profile_step_start: int = option(10, "profile the iterations after this one")
    profile_step_end: int = option(12, "profile the iterations up to this one")
    profile_ranks: list[int] = option([0], "ranks to profile")
    use_pytorch_profiler: bool = option(
        False,
        "let PyTorch take the trace, into the folder profile of --run-dir; off: nsys, under which "
        "the job was started",
    )
    nvtx_ranges: bool = option(False, "show data, forward-backward, optimizer and save in nsys")
    record_memory_history: bool = option(
        False, "save the history of the GPU's memory at the end, and when it is used up"
    )
    memory_snapshot_path: str = option(
        "snapshot.pickle", "name of these files, in the folder profile of --run-dir"
    )


@dataclass(kw_only=True)
class RuntimeConfig:
    """The machine, and what to do instead of training."""

    device: str = option("auto", "auto: a GPU where there is one", choices=("auto", "cpu", "cuda"))
    distributed_backend: str = option(
        "auto", "auto: nccl on GPUs, gloo on CPUs", choices=("auto", "nccl", "gloo")
    )
    distributed_timeout_minutes: float = option(10.0, "a collective that takes longer ends the run")
    hang_timeout_minutes: float | None = option(
        None,
        "end the run, saying where each rank stands, when one makes no step for so long; default: "
        "--distributed-timeout-minutes",
    )
    tp_comm_overlap_cfg: str | None = option(
        None, "YAML file: Transformer Engine's settings of each product, for --tp-comm-overlap"
    )
    count_parameters: bool = option(False, "print the parameter counts and exit")
    print_config: bool = option(False, "print the resolved configuration as a preset and exit")


OUR_SECTIONS = {
    "input": InputConfig,
    "model": ModelConfig,
    "data": DataConfig,
    "training": TrainingConfig,
    "checkpoint": CheckpointConfig,
    "logging": LoggingConfig,
    "runtime": RuntimeConfig,
}
