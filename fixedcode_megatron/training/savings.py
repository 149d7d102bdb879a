"""What a computed input interface saves in a run, against the learned table at the same layout.

Worked out from the layout, not measured: sizes are those of the table itself, without the padding
of communication buffers. The head is the same on both sides.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from megatron.core import parallel_state

from fixedcode_megatron.training.memory import moment_bytes

if TYPE_CHECKING:
    from fixedcode_megatron.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Savings:
    """All but `parameters` are of one rank of the first pipeline stage, which would hold the table.

    Attributes
    ----------
    parameters
        Of the whole model.
    parameter_bytes, gradient_bytes, optimizer_bytes
        The table's share of the weights, of the gradient buffer, and of FP32 main weights and
        moments (over the data-parallel ranks with the distributed optimizer).
    gradient_reduction_bytes
        Per step: what this rank hands to the data-parallel reduction of the table's gradient.
    parameter_gather_bytes
        Per step, with the distributed optimizer: the updated table that is gathered again.
    tensor_parallel_collectives, tensor_parallel_bytes
        Per step: calls that bring the shares of the table's output together (an all-reduce forward,
        or a reduce-scatter and an all-gather backward under sequence parallel), and the size of the
        whole tensor in each, summed.
    """

    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    gradient_reduction_bytes: int
    parameter_gather_bytes: int
    tensor_parallel_collectives: int
    tensor_parallel_bytes: int

    def __str__(self) -> str:
        lines = [
            f"  {name.replace('_', ' '):<28}{value:>16,}" for name, value in asdict(self).items()
        ]
        title = "saved against a learned table (bytes and collectives: a step, a first-stage rank)"
        return "\n".join([title, *lines])


def savings(trainer: Trainer) -> Savings | None:
    """The savings of a run; None with the learned interface.

    Those of `lowdim`, whose small table every tensor-parallel rank of the first stage holds, are
    what is left of them.
    """
    cfg, config = trainer.cfg, trainer.config
    if cfg.input.input_interface == "learned":
        return None
    own = 0
    if cfg.input.input_interface == "lowdim":
        bits = cfg.input.code_bits or (trainer.vocabulary.size - 1).bit_length()
        own = trainer.vocabulary.size * bits
    table = trainer.vocabulary.padded_size * config.hidden_size
    rows = table // config.tensor_model_parallel_size - own
    copies = parallel_state.get_data_parallel_world_size(with_context_parallel=True)
    sixteen_bit = config.bf16 or config.fp16
    weight = 2 if sixteen_bit else 4
    gradient = 4 if cfg.ddp.grad_reduce_in_fp32 or not sixteen_bit else 2
    moments = moment_bytes(cfg.optimizer.optimizer) + (4 if sixteen_bit else 0)
    shared = cfg.ddp.use_distributed_optimizer
    calls, size = _tensor_parallel(trainer, weight)
    return Savings(
        parameters=table - own,
        parameter_bytes=rows * weight,
        gradient_bytes=rows * gradient,
        optimizer_bytes=rows * moments // (copies if shared else 1),
        gradient_reduction_bytes=rows * gradient if copies > 1 else 0,
        parameter_gather_bytes=rows * weight if copies > 1 and shared else 0,
        tensor_parallel_collectives=calls,
        tensor_parallel_bytes=calls * size,
    )


def _tensor_parallel(trainer: Trainer, element: int) -> tuple[int, int]:
    """Collectives at the input in a step of the full batch, and bytes of the tensor in each."""
    cfg, config = trainer.cfg, trainer.config
    if config.tensor_model_parallel_size == 1:
        return 0, 0
    tokens = cfg.training.micro_batch_size * cfg.model.seq_length // config.context_parallel_size
    calls = (2 if config.sequence_parallel else 1) * trainer.num_evaluation_microbatches
    return calls, tokens * config.hidden_size * element
