"""Trains with and without CUDA graphs through the real loop, TE's and megatron-core's; prints JSON.

python -m tests.transformer_engine.graph_training WHEEL_FOLDER FOLDER 'NAME: GRAPHS FLAGS' ...

GRAPHS is the number of warm-up steps, or `off`. Layers are torch-native ones: Transformer Engine's
need its compiled part.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

torch.compiler.set_stance("force_eager")  # dynamo must be there before anything is replaced

from fixedcode_megatron import cpu_platform  # noqa: E402
from tests.transformer_engine import compiled_part, recorded_operations  # noqa: E402

EVENTS: list[Any] = []


def watch() -> None:
    """Note what the loop calls, in which order."""
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.transformer.cuda_graphs import TECudaGraphHelper

    from fixedcode_megatron.training import evaluation, loop

    def noted(owner: Any, name: str, what: Any) -> None:
        function = getattr(owner, name)

        def noting(*args: Any, **kwargs: Any) -> Any:
            EVENTS.append(what(*args, **kwargs))
            return function(*args, **kwargs)

        setattr(owner, name, noting)

    def hooks(helper: Any) -> int:
        return sum(len(layer._forward_pre_hooks) for layer in helper.flattened_callables)

    noted(TECudaGraphHelper, "create_cudagraphs", lambda h: f"record, {hooks(h)} hooks on layers")
    noted(TECudaGraphHelper, "cuda_graph_set_manual_hooks", lambda h: f"by hand, {hooks(h)} hooks")
    noted(TECudaGraphHelper, "delete_cuda_graphs", lambda _: "delete")
    noted(
        DistributedDataParallel,
        "disable_forward_pre_hook",
        lambda _, param_sync=True: f"hooks off, gather {param_sync}",
    )
    noted(DistributedDataParallel, "enable_forward_pre_hook", lambda _: "hooks on")
    noted(loop, "train_step", lambda *_: "step")
    noted(evaluation, "run_microbatches", lambda *_, **__: "evaluate")


def attend_as_transformer_engine() -> None:
    """Causal attention ignores the mask, which a replay is given without anything masked."""
    from fixedcode_megatron.model.layers import CoreAttention

    attend = CoreAttention.forward

    def forward(
        self: Any, query: Any, key: Any, value: Any, _mask: Any, *rest: Any, **by: Any
    ) -> Any:
        return attend(self, query, key, value, None, *rest, **by)

    CoreAttention.forward = forward  # type: ignore[method-assign]


def train(flags: list[str], graphs: str) -> dict[str, Any]:
    """One run; what is true of its graphs and of its random states."""
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    from fixedcode_megatron import pretrain
    from fixedcode_megatron import runtime as run_time
    from fixedcode_megatron.config import parse_args
    from fixedcode_megatron.training import checkpoint_state

    EVENTS.clear()
    recorded_operations.GRAPHS.clear()

    cfg = parse_args(flags)
    if graphs != "off":  # refused on a machine without GPUs, for good reason
        cfg.set("cuda_graph_impl", "transformer_engine")
        cfg.set("cuda_graph_warmup_steps", int(graphs))
        cfg.set("use_te_rng_tracker", True)
    states: list[Any] = []
    plain = checkpoint_state.plain_states

    def plain_states(found: dict[str, Any]) -> dict[str, Any]:
        states.append([type(state).__name__ for state in found.values()])
        return plain(found)

    checkpoint_state.plain_states = plain_states
    try:
        with contextlib.redirect_stdout(sys.stderr):
            status = pretrain.run(cfg)
    finally:
        run_time.shutdown()
        checkpoint_state.plain_states = plain
    used = [graph for graph in recorded_operations.GRAPHS if graph.replays]
    return {
        "status": status,
        "events": list(EVENTS),
        "replays": [graph.replays for graph in used],
        "reset": all(graph.was_reset for graph in used),
        "generators": sorted({len(graph.generators) for graph in used}),
        "tracker": type(get_cuda_rng_tracker()).__name__,
        "states": states,
    }


def main() -> None:
    compiled_part.install(Path(sys.argv[1]))
    sys.modules["transformer_engine.pytorch.optimizers"] = None  # type: ignore[assignment]
    cpu_platform.install()
    recorded_operations.install()
    watch()
    attend_as_transformer_engine()
    found = {}
    port = int(os.environ.get("MASTER_PORT", "0"))
    for index, run in enumerate(sys.argv[2:]):
        os.environ["MASTER_PORT"] = str(port + index)  # each run has a store of its own
        name, rest = run.split(": ", 1)
        graphs, *flags = rest.split()
        found[name] = train(flags, graphs)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
