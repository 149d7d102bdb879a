"""The GPT model with any input interface, and how one rank's chunks of it are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig

from fixedcode_megatron.codes import TokenCode
from fixedcode_megatron.config.availability import transformer_impl
from fixedcode_megatron.config.megatron_fields import transformer_config
from fixedcode_megatron.config.token_code import token_code
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.model.folding import (
    FoldedLayerNormColumnParallelLinear,
    check_foldable,
)
from fixedcode_megatron.model.initialization import initialize_weights
from fixedcode_megatron.model.input_interface import FixedCodeEmbedding, LowDimEmbedding
from fixedcode_megatron.model.layer_spec import block_spec
from fixedcode_megatron.model.linear_cross_entropy import linear_cross_entropy

if TYPE_CHECKING:
    from fixedcode_megatron.config import RunConfig

InputInterfaceBuilder = Callable[[TransformerConfig, ProcessGroupCollection], MegatronModule]


class PretrainGPTModel(GPTModel):
    """megatron-core's GPTModel that can fuse its output layer with the loss.

    Parameters
    ----------
    fuse_output_and_loss
        Return the sum of the token losses under `loss_mask`, a scalar, in place of each token's
        loss, without ever holding the logits (see `linear_cross_entropy`). Calls without labels
        return logits as ever.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *args: Any,
        fuse_output_and_loss: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(config, *args, **options)
        self.fuse_output_and_loss = fuse_output_and_loss

    def _postprocess(
        self, hidden_states: Any, *, labels: Any, loss_mask: Any = None, **state: Any
    ) -> Any:
        if labels is None or not (self.post_process and self.fuse_output_and_loss):
            return super()._postprocess(
                hidden_states=hidden_states, labels=labels, loss_mask=loss_mask, **state
            )
        weight = self.output_layer.weight
        if self.share_embeddings_and_output_weights:
            weight = self.shared_embedding_or_output_weight()
        return linear_cross_entropy(
            hidden_states,
            weight,
            labels,
            torch.ones_like(labels) if loss_mask is None else loss_mask,
            group=self.pg_collection.tp,
            sequence_parallel=self.config.sequence_parallel,
        )


class ComputedInputGPTModel(PretrainGPTModel):
    """A GPTModel whose first stage has a computed input instead of a table.

    It is constructed as a stage without an input, so that no table is ever allocated and
    megatron-core's embedding bookkeeping finds nothing to tie or reduce; then the input interface
    is attached and the stage marked as the first.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *args: Any,
        input_interface: InputInterfaceBuilder,
        pre_process: bool = True,
        **options: Any,
    ) -> None:
        if options.get("share_embeddings_and_output_weights"):
            raise UserError("a computed input interface has no table to tie the output layer to")
        super().__init__(config, *args, pre_process=False, **options)
        if pre_process:
            self.pre_process = self.decoder.pre_process = True
            self.embedding = input_interface(config, self.pg_collection)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Vocabulary of a run.

    Attributes
    ----------
    size
        V: ids are 0..V-1; the token code's width follows from it.
    padded_size
        Rows of the output layer (and of the `learned` interface's table, but not of `lowdim`'s,
        which every rank has whole): V rounded up so that it splits over the tensor-parallel ranks.
    """

    size: int
    padded_size: int

    @classmethod
    def padded(cls, size: int, divisor: int, tensor_parallel_size: int) -> Vocabulary:
        """Pad `size` to a multiple of `divisor` * `tensor_parallel_size`, as Megatron does."""
        multiple = divisor * tensor_parallel_size
        return cls(size=size, padded_size=-(-size // multiple) * multiple)


def run_vocabulary(cfg: RunConfig, size: int) -> Vocabulary:
    """The vocabulary of `size` ids under the run's padding rule."""
    divisor = cfg.model.make_vocab_size_divisible_by
    return Vocabulary.padded(size, divisor, cfg.transformer.tensor_model_parallel_size)


def build_model(
    cfg: RunConfig, vocabulary: Vocabulary, **config_overrides: Any
) -> tuple[list[MegatronModule], TransformerConfig, TokenCode | None]:
    """Build this rank's chunks of the model (several under interleaved pipelining).

    Parameters
    ----------
    cfg
        The resolved configuration.
    vocabulary
        Ids of the data; `padded_size` is the width of the output layer.
    config_overrides
        Fields of megatron-core's TransformerConfig to set on top of `cfg`.

    Returns
    -------
    models, config, code
        Bare modules (neither wrapped in Float16Module nor in DDP); the configuration they were
        built with; the token code, or None for the learned and low-dimensional interfaces.
    """
    config = transformer_config(cfg, **config_overrides)
    code = token_code(cfg.input, vocabulary.size)
    if code is not None:
        code.check_width(config.hidden_size)
    if cfg.input.fold_first_layer:
        check_foldable(config, code, cfg.input.input_interface, transformer_impl(cfg))
    stages = config.virtual_pipeline_model_parallel_size
    models = [
        _build_chunk(cfg, config, vocabulary, vp_stage)
        for vp_stage in (range(stages) if stages else [None])
    ]
    for module in (module for model in models for module in model.modules()):
        if isinstance(module, FoldedLayerNormColumnParallelLinear):
            assert code is not None
            module.attach_code(code)
    initialize_weights(models, config, cfg.training.seed)
    return models, config, code if cfg.input.input_interface not in ("learned", "lowdim") else None


def _build_chunk(
    cfg: RunConfig,
    config: TransformerConfig,
    vocabulary: Vocabulary,
    vp_stage: int | None,
) -> MegatronModule:
    where = dict(ignore_virtual=False, vp_stage=vp_stage)
    options = dict(
        transformer_layer_spec=block_spec(
            config,
            transformer_impl(cfg),
            vp_stage=vp_stage,
            pp_rank=parallel_state.get_pipeline_model_parallel_rank(),
            fold_first_layer=cfg.input.fold_first_layer,
        ),
        vocab_size=vocabulary.padded_size,
        max_sequence_length=cfg.model.max_position_embeddings or cfg.model.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(**where),
        post_process=parallel_state.is_pipeline_last_stage(**where),
        fp16_lm_cross_entropy=False,
        parallel_output=True,
        share_embeddings_and_output_weights=not cfg.model.untie_embeddings_and_output_weights,
        position_embedding_type=cfg.model.position_embedding_type,
        rotary_percent=cfg.model.rotary_percent,
        rotary_base=cfg.model.rotary_base,
        vp_stage=vp_stage,
        fuse_output_and_loss=cfg.model.fused_linear_cross_entropy,
    )
    if cfg.input.input_interface == "learned":
        return PretrainGPTModel(config, **options)
    return ComputedInputGPTModel(
        config, input_interface=input_interface_builder(cfg, vocabulary), **options
    )


def input_interface_builder(cfg: RunConfig, vocabulary: Vocabulary) -> InputInterfaceBuilder:
    """How the first stage builds its computed input interface."""
    code = token_code(cfg.input, vocabulary.size)
    assert code is not None, "the learned interface is megatron-core's own"

    def build(config: TransformerConfig, groups: ProcessGroupCollection) -> MegatronModule:
        if cfg.input.input_interface == "lowdim":
            lift = code.lift_index(config.hidden_size)
            return LowDimEmbedding(config, vocabulary.size, lift, groups.tp)
        return FixedCodeEmbedding(
            config,
            code,
            groups.tp,
            check_ids=cfg.input.check_token_ids,
            hand_over_values=cfg.input.fold_first_layer,
        )

    return build
