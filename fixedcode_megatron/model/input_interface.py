"""Input interfaces: what turns token ids into the [s, b, h] tensor that enters layer 1.

They take the place of megatron-core's `LanguageModelEmbedding` (`GPTModel.embedding`): the same
call, the same output layout. `FixedCodeEmbedding` owns no parameter and allocates no table;
`LowDimEmbedding` is a control, a learned V x K table tiled to the model width.
"""

from __future__ import annotations

import torch
from megatron.core import tensor_parallel
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from fixedcode_kernels import token_code_embedding
from fixedcode_megatron.codes import TokenCode
from fixedcode_megatron.model.folding import VALUES_ATTRIBUTE


class _ComputedEmbedding(MegatronModule):
    """What the interfaces share: dropout, sequence parallelism, FP32 residual, recompute."""

    def __init__(self, config: TransformerConfig, tp_group: torch.distributed.ProcessGroup) -> None:
        super().__init__(config=config)
        self.tp_group = tp_group
        # megatron-core asks its embedding whether the output is already scattered.
        self.scatter_to_sequence_parallel = True
        self.embedding_dropout = torch.nn.Dropout(config.hidden_dropout)

    def _sequence_slice(self, sequence_length: int) -> tuple[int, int]:
        """Start and length of this rank's part of the sequence."""
        if not self.config.sequence_parallel:
            return 0, sequence_length
        size, rank = self.tp_group.size(), self.tp_group.rank()
        if sequence_length % size:
            raise ValueError(
                f"sequence length {sequence_length} is not a multiple of the tensor-parallel size "
                f"{size}, which sequence parallelism needs"
            )
        part = sequence_length // size
        return rank * part, part

    def _finish(self, x: Tensor) -> Tensor:
        if self.config.fp32_residual_connection:
            x = x.float()
        if self.config.sequence_parallel:
            # Each rank holds other tokens, so each must draw another dropout mask.
            with tensor_parallel.get_cuda_rng_tracker().fork():
                x = self.embedding_dropout(x)
        else:
            x = self.embedding_dropout(x)
        if self.config.recompute_granularity and self.training and torch.is_grad_enabled():
            # A checkpointed layer none of whose inputs requires a gradient returns an output that
            # requires none: its parameters would silently stop training.
            x.requires_grad_()
        return x


class FixedCodeEmbedding(_ComputedEmbedding):
    """The token's fixed code, tiled to the model width: no parameters, no table, no gradient.

    Parameters
    ----------
    config
        megatron-core's configuration; `hidden_size` must suit the code (`TokenCode.check_width`).
    code
        Which code, with its lift, scale and offset.
    tp_group
        Tensor-parallel group; under sequence parallelism each rank computes its own slice.
    check_ids
        Verify that every id is below the vocabulary size (costs a host synchronisation on GPUs).
    hand_over_values
        Attach the whole sequence's code values to the output, for a folded first layer.
    """

    def __init__(
        self,
        config: TransformerConfig,
        code: TokenCode,
        tp_group: torch.distributed.ProcessGroup,
        *,
        check_ids: bool = False,
        hand_over_values: bool = False,
    ) -> None:
        super().__init__(config, tp_group)
        code.check_width(config.hidden_size)
        self.code = code
        self.check_ids = check_ids
        self.hand_over_values = hand_over_values

    def forward(
        self, input_ids: Tensor, position_ids: Tensor | None = None, tokentype_ids: None = None
    ) -> Tensor:
        """Code of `input_ids` [b, s] as [s, b, h], or [s / tp, b, h] if sequence-parallel."""
        start, length = self._sequence_slice(input_ids.shape[1])
        x = self._finish(self._embed(input_ids, self.config.hidden_size, start, length))
        if self.hand_over_values and self.config.sequence_parallel:
            values = self._embed(input_ids, self.code.num_bits, 0, input_ids.shape[1])
            setattr(x, VALUES_ATTRIBUTE, values)
        return x

    def _embed(self, input_ids: Tensor, width: int, start: int, length: int) -> Tensor:
        """The code of `length` positions from `start` on, lifted to `width`: [length, b, width]."""
        dtype = self.config.params_dtype
        if self.code.kind == "random":
            # Contiguous, as the next pipeline stage needs to receive it.
            ids = input_ids[:, start : start + length].t().contiguous()
            return self.code.embed(ids, width, dtype, check=self.check_ids)
        return token_code_embedding(
            input_ids,
            self.code,
            width,
            dtype=dtype,
            seq_start=start,
            seq_length=length,
            check_ids=self.check_ids,
        )


class LowDimEmbedding(_ComputedEmbedding):
    """A learned V x K table tiled to the model width (a control: learned, but as narrow as a code).

    The table is small (V * K elements) and replicated over the tensor-parallel group.
    """

    def __init__(
        self,
        config: TransformerConfig,
        vocab_size: int,
        lift_index: Tensor,
        tp_group: torch.distributed.ProcessGroup,
    ) -> None:
        super().__init__(config, tp_group)
        num_columns = int(lift_index.max()) + 1
        device = None if config.use_cpu_initialization else torch.cuda.current_device()
        self.weight = torch.nn.Parameter(
            torch.empty(vocab_size, num_columns, dtype=config.params_dtype, device=device)
        )
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        # As megatron-core marks its own table: no matrix for Muon.
        self.weight.is_embedding_or_output_parameter = True  # type: ignore[attr-defined]
        if config.perform_initialization:
            config.init_method(self.weight)
        self.register_buffer("lift_index", lift_index, persistent=False)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor | None = None, tokentype_ids: None = None
    ) -> Tensor:
        """Tiled table rows of `input_ids` [b, s] as [s, b, h] ([s / tp, b, h] as above)."""
        start, length = self._sequence_slice(input_ids.shape[1])
        ids = input_ids[:, start : start + length].t()
        rows = torch.nn.functional.embedding(ids, self.weight)
        return self._finish(rows.index_select(-1, self.lift_index))
