"""What `--tp-comm-overlap` asks Transformer Engine's real code for; prints JSON.

python -m tests.transformer_engine.overlap_call WHEEL_FOLDER 'FLAGS OF A RUN' ...
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path

import torch

torch.compiler.set_stance("force_eager")  # dynamo must be there before anything is replaced

from tests.transformer_engine import compiled_part  # noqa: E402


def main(folder: Path, runs: list[str]) -> None:
    compiled_part.install(folder)
    from transformer_engine.pytorch.module import base

    from fixedcode_megatron import tp_overlap
    from fixedcode_megatron.config import parse_args
    from fixedcode_megatron.errors import UserError

    configurations = [parse_args([*run.split(), "--print-config"], world_size=4) for run in runs]
    try:  # the compiled part is not there, and says so
        tp_overlap.initialize(configurations[0])
        error = None
    except UserError as refusal:
        error = str(refusal)
    signature, calls = inspect.signature(base.initialize_ub), []
    base.initialize_ub = lambda *args, **kwargs: calls.append(signature.bind(*args, **kwargs))
    for cfg in configurations:
        tp_overlap.initialize(cfg)
    print(json.dumps([error, [{k: str(v) for k, v in c.arguments.items()} for c in calls]]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
