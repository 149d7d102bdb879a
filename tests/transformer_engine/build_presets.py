"""Builds presets with Transformer Engine's layers and with torch-native ones; prints JSON.

    python -m tests.transformer_engine.build_presets WHEEL_FOLDER

Each model has two layers (names repeat after that) and exists on the meta device only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

torch.compiler.set_stance("force_eager")  # dynamo must be there before anything is replaced

from fixedcode_megatron import cpu_platform  # noqa: E402
from tests.transformer_engine import compiled_part  # noqa: E402

PRECISIONS = ("bf16", "fp8_delayed", "fp8_current", "fp8_blockwise", "fp32")


def names(flags: list[str]) -> dict[str, Any]:
    """Parameters and sharded keys of a model: {name: shape, type}, {name: key, global shape}."""
    from megatron.core import parallel_state

    from fixedcode_megatron import runtime as run_time
    from fixedcode_megatron.config import parse_args
    from fixedcode_megatron.model.gpt import build_model, run_vocabulary

    cfg = parse_args([*flags, "--print-config"], world_size=1)
    run_time.initialize_single(cfg)
    torch.cuda.is_available = lambda: True  # Transformer Engine builds nothing without
    try:
        with torch.device("meta"):
            models, config, _ = build_model(
                cfg,
                run_vocabulary(cfg, cfg.model.vocab_size),
                use_cpu_initialization=True,
                perform_initialization=False,
                init_model_with_meta_device=True,
            )
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        sharded = models[0].sharded_state_dict(metadata={"dp_cp_group": group})
    finally:
        torch.cuda.is_available = lambda: False
        run_time.shutdown()
    modules = {type(module).__module__.split(".")[0] for module in models[0].modules()}
    return {
        "parameters": {n: [list(p.shape), str(p.dtype)] for n, p in models[0].named_parameters()},
        # TE's scaling factors (_extra_state) have no counterpart and are not looked for.
        "sharded": {
            name: [value.key, list(getattr(value, "global_shape", ()))]
            for name, value in sharded.items()
            if not name.endswith("_extra_state")
        },
        "uses_te": "transformer_engine" in str([type(m).__mro__ for m in models[0].modules()]),
        "fp8": [config.fp8, str(config.fp8_recipe) if config.fp8 else None],
        "modules": sorted(modules),
    }


def main() -> None:
    compiled_part.install(Path(sys.argv[1]))
    cpu_platform.install()
    from fixedcode_megatron.config.presets import PRESET_FOLDER

    found: dict[str, Any] = {}
    for preset in sorted({path.stem for path in PRESET_FOLDER.glob("*.yaml")} - {"sft"}):
        base = ["--config", preset, "--num-layers", "2"]
        base += ["--pipeline-model-parallel-size", "1", "--tensor-model-parallel-size", "1"]
        base += ["--no-sequence-parallel"]
        local = {
            precision: names([*base, "--precision", precision, "--transformer-impl", "local"])
            for precision in ("bf16", "fp32")  # torch-native layers have no FP8
        }
        for precision in PRECISIONS:
            flags = [*base, "--precision", precision, "--transformer-impl", "transformer_engine"]
            found[f"{preset} {precision}"] = {
                "te": names(flags),
                "local": local["fp32" if precision == "fp32" else "bf16"],
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
