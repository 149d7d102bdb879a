"""What one rank of a job works on: the sizes that every estimate starts from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fixedcode_megatron.code_checks import minimal_bits
from fixedcode_megatron.config.derive import data_parallel_size, model_parallel_size
from fixedcode_megatron.config.sections import FIXED_INTERFACES
from fixedcode_megatron.errors import UserError

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class RankShape:
    """Sizes of one rank's share; widths are those of this rank, after tensor parallelism.

    Attributes
    ----------
    tp, cp, dp, pp
        Ranks that share each tensor, each sequence, the data, the layers.
    stage, chunks
        Pipeline stage, and model chunks on it (more than one when interleaved).
    layers
        Transformer layers of each chunk.
    has_input, has_head
        Whether the first chunk holds the input interface, the last one the head.
    sequence, batch
        Positions of a sequence on this rank (after context parallelism), samples in a micro-batch.
    microbatches
        Micro-batches of a step.
    query, key_value
        Widths of all queries, and of all keys (or values).
    mlp
        Width of the MLP; `gated` ones project to twice this.
    vocabulary
        Rows of the padded head.
    element_size
        Bytes of a parameter and an activation.
    """

    tp: int
    cp: int
    dp: int
    pp: int
    stage: int
    chunks: int
    layers: int
    has_input: bool
    has_head: bool
    sequence: int
    batch: int
    microbatches: int
    hidden: int
    query: int
    key_value: int
    heads: int
    head_width: int
    mlp: int
    gated: bool
    vocabulary: int
    element_size: int
    sequence_parallel: bool
    layer_norm: bool
    linear_bias: bool
    qkv_bias: bool
    qk_norm: bool
    interface: str
    code_bits: int
    folded: bool
    fused_loss: bool
    recompute: str
    distributed_optimizer: bool
    fp8: bool
    overlap_gradients: bool
    overlap_parameters: bool
    bucket_size: int | None
    gradient_element_size: int
    ddp_padding: int

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters and share their gradients and optimizer state."""
        return self.dp * self.cp

    @property
    def activation(self) -> int:
        """Bytes of one [s, b, h] activation, whole in its sequence and its width."""
        return self.sequence * self.batch * self.hidden * self.element_size

    @property
    def sequence_shards(self) -> int:
        """Parts into which sequence parallelism cuts activations between the linear layers."""
        return self.tp if self.sequence_parallel else 1


def rank_shape(cfg: RunConfig, world_size: int, stage: int = 0) -> RankShape:
    """The sizes of a rank of pipeline stage `stage`.

    Raises
    ------
    UserError
        For what the planner does not know: tied tables, low-dimensional tables, uneven stages.
    """
    from fixedcode_megatron.model.gpt import run_vocabulary

    _refuse_unknown(cfg)
    t, training = cfg.transformer, cfg.training
    tp, pp, cp = (
        t.tensor_model_parallel_size,
        t.pipeline_model_parallel_size,
        t.context_parallel_size,
    )
    dp, chunks = data_parallel_size(cfg, world_size), t.virtual_pipeline_model_parallel_size or 1
    assert world_size == dp * model_parallel_size(cfg), (world_size, dp, tp, pp, cp)
    vocabulary = cfg.model.vocab_size
    assert vocabulary and training.global_batch_size
    overlap, bucket = cfg.ddp.overlap_grad_reduce, cfg.ddp.bucket_size
    sixteen_bit = t.bf16 or t.fp16
    return RankShape(
        tp=tp,
        cp=cp,
        dp=dp,
        pp=pp,
        stage=stage,
        chunks=chunks,
        layers=t.num_layers // (pp * chunks),
        has_input=stage == 0,
        has_head=stage == pp - 1,
        sequence=cfg.model.seq_length // cp,
        batch=training.micro_batch_size,
        microbatches=training.global_batch_size // (training.micro_batch_size * dp),
        hidden=t.hidden_size,
        query=t.num_attention_heads * t.kv_channels // tp,
        key_value=t.num_query_groups * t.kv_channels // tp,
        heads=t.num_attention_heads // tp,
        head_width=t.kv_channels,
        mlp=t.ffn_hidden_size // tp,
        gated=cfg.model.swiglu,
        vocabulary=run_vocabulary(cfg, vocabulary).padded_size // tp,
        element_size=2 if sixteen_bit else 4,
        sequence_parallel=t.sequence_parallel and tp > 1,
        layer_norm=t.normalization == "LayerNorm",
        linear_bias=t.add_bias_linear,
        qkv_bias=t.add_bias_linear or t.add_qkv_bias,
        qk_norm=t.qk_layernorm,
        interface=cfg.input.input_interface,
        code_bits=cfg.input.code_bits or minimal_bits(vocabulary),
        folded=cfg.input.fold_first_layer,
        fused_loss=cfg.model.fused_linear_cross_entropy,
        recompute=_recompute(cfg),
        distributed_optimizer=cfg.ddp.use_distributed_optimizer,
        fp8=bool(t.fp8),
        overlap_gradients=overlap,
        overlap_parameters=cfg.ddp.overlap_param_gather,
        bucket_size=(bucket or max(40_000_000, 1_000_000 * dp * cp)) if overlap else None,
        gradient_element_size=2 if sixteen_bit and not cfg.ddp.grad_reduce_in_fp32 else 4,
        ddp_padding=2**16 if cfg.ddp.pad_buckets_for_high_nccl_busbw else 128,
    )


def _recompute(cfg: RunConfig) -> str:
    granularity = cfg.transformer.recompute_granularity
    return "none" if granularity is None else granularity


def _refuse_unknown(cfg: RunConfig) -> None:
    t, problems = cfg.transformer, []
    if cfg.input.input_interface not in ("learned", *FIXED_INTERFACES):
        problems.append("--input-interface lowdim; use learned or a fixed one")
    elif cfg.input.fold_first_layer and cfg.input.input_interface == "learned":
        problems.append("--fold-first-layer with --input-interface learned; fold a fixed one")
    if not cfg.model.untie_embeddings_and_output_weights:
        problems.append("tied tables; use --untie-embeddings-and-output-weights")
    if cfg.optimizer.optimizer != "adam":
        problems.append(f"--optimizer {cfg.optimizer.optimizer}; use adam")
    if cfg.optimizer.optimizer_cpu_offload:
        problems.append("--optimizer-cpu-offload; use --no-optimizer-cpu-offload")
    if any(
        (
            t.num_layers_in_first_pipeline_stage,
            t.num_layers_in_last_pipeline_stage,
            t.account_for_embedding_in_pipeline_split,
            t.account_for_loss_in_pipeline_split,
            t.pipeline_model_parallel_layout,
        )
    ):
        problems.append("uneven pipeline stages; use a number of stages that divides --num-layers")
    if t.recompute_granularity == "selective" and t.recompute_modules not in (
        None,
        ["core_attn"],
    ):
        problems.append("--recompute-modules other than core_attn")
    if t.num_query_groups < t.tensor_model_parallel_size:
        problems.append(
            f"--num-query-groups {t.num_query_groups} below --tensor-model-parallel-size "
            f"{t.tensor_model_parallel_size}"
        )
    if t.num_moe_experts is not None:
        problems.append("mixtures of experts")
    if cfg.model.vocab_size is None:
        problems.append("a vocabulary of unknown size; give --vocab-size")
    if problems:
        raise UserError(f"the planner does not cover {'; nor '.join(problems)}")


def loss_chunks(rank: RankShape) -> list[int]:
    """Tokens of each chunk in which the fused head and loss work through a micro-batch."""
    from fixedcode_megatron.model.linear_cross_entropy import chunks

    tokens = rank.sequence * rank.batch
    return [part.stop - part.start for part in chunks(tokens, rank.vocabulary)]


def padded(value: int, divisor: int) -> int:
    """`value` rounded up to a multiple of `divisor`."""
    return math.ceil(value / divisor) * divisor
