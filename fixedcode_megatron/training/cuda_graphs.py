"""CUDA graphs of the transformer layers: recorded once, replayed in every later training step.

megatron-core's `TECudaGraphHelper` lets Transformer Engine record each layer's forward and
backward pass. A training loop has to call it after the warm-up steps, when nothing else is under
way, to keep DDP's hooks away from the recording and to set them by hand where a replay would pass
them over, and to give the graphs back at the end. Input, loss, reductions, update and evaluation
stay outside.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fixedcode_megatron.config import checks_graphs
from fixedcode_megatron.training import phases

if TYPE_CHECKING:
    from fixedcode_megatron.training.trainer import Trainer

logger = logging.getLogger(__name__)


class LayerGraphs:
    """The graphs of one rank's layers; does nothing in a run without `--cuda-graph-impl`.

    Parameters
    ----------
    trainer
        Its models' layers are recorded after `--cuda-graph-warmup-steps` training steps of this
        process.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._helper: Any = None
        self._steps = 0

    def before_step(self) -> None:
        """Record the layers when the warm-up is over; every rank calls it before each step."""
        trainer = self._trainer
        if not checks_graphs.wanted(trainer.cfg) or self._helper is not None:
            return
        if self._steps == trainer.config.cuda_graph_warmup_steps:
            with trainer.phases(phases.CAPTURE):
                self._record()
        self._steps += 1

    def delete(self) -> None:
        """Give the graphs back; the next steps run without."""
        if self._helper is not None and self._helper.graphs_created():
            self._helper.delete_cuda_graphs()
        self._helper, self._steps = None, 0

    def _record(self) -> None:
        from megatron.core.transformer.cuda_graphs import TECudaGraphHelper

        trainer = self._trainer
        gathers_ahead = trainer.cfg.ddp.overlap_param_gather
        self._helper = TECudaGraphHelper(
            model=trainer.models,
            config=trainer.config,
            seq_length=trainer.cfg.model.seq_length,
            micro_batch_size=trainer.cfg.training.micro_batch_size,
            optimizers=[trainer.optimizer],
        )
        if gathers_ahead:  # what the weights are does not matter to a recording
            for model in trainer.models:
                model.disable_forward_pre_hook(param_sync=False)
        self._helper.create_cudagraphs()
        if gathers_ahead:
            for model in trainer.models:
                model.enable_forward_pre_hook()
            self._helper.cuda_graph_set_manual_hooks()
        logger.info("CUDA graphs of %d layers are recorded", len(self._helper.flattened_callables))
