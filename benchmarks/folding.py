"""First-layer folding against the standard norm and QKV projection, both in one run.

    python benchmarks/folding.py [--tokens 4096] [--hidden-size 2048] [--rounds 5] [--csv FILE]

Measured are the modules that training uses, forward and backward, on the same code as input:
`unfolded, learned input` also computes the gradient of the input, as a learned table needs it.
Rounds are interleaved; the minimum of each is kept, and the ratio to the folded layer is printed.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fixedcode_megatron import runtime
from fixedcode_megatron.codes import TokenCode
from fixedcode_megatron.config import RunConfig, parse_args


def main() -> None:
    """Measure, print a table, and write a CSV where asked to."""
    options = _options()
    flags = f"--num-layers 1 --hidden-size {options.hidden_size} --num-attention-heads 32 "
    flags += "--normalization RMSNorm --disable-bias-linear --hidden-dropout 0 --print-config "
    flags += "--no-gradient-accumulation-fusion"
    cfg = parse_args(flags.split())
    started = runtime.initialize(cfg)
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        rows += _measure(options, cfg, started, dtype)
    runtime.shutdown()
    _print(rows)
    if options.csv:
        _write(rows, options.csv)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden-size", type=int, default=2048)
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--csv", type=Path)
    return parser.parse_args()


def _measure(
    options: argparse.Namespace, cfg: RunConfig, started: runtime.Runtime, dtype: torch.dtype
) -> list[dict[str, object]]:
    from fixedcode_megatron.config.megatron_fields import transformer_config
    from fixedcode_megatron.model.folding import FoldedLayerNormColumnParallelLinear
    from fixedcode_megatron.model.layers import LayerNormColumnParallelLinear

    width = options.hidden_size
    config = transformer_config(cfg, params_dtype=dtype)
    code = TokenCode.binary(options.vocab_size)

    def build(kind: type) -> torch.nn.Module:
        shape = (width, 3 * width)
        init = config.init_method
        return kind(*shape, config=config, init_method=init, bias=False, gather_output=False)

    plain, folded = build(LayerNormColumnParallelLinear), build(FoldedLayerNormColumnParallelLinear)
    folded.load_state_dict(plain.state_dict())
    folded.attach_code(code)
    ids = torch.randint(0, options.vocab_size, (options.tokens, 1))
    x = code.embed(ids, width, dtype).to(started.device)
    learned = x.clone().requires_grad_()
    upstream = torch.randn(options.tokens, 1, 3 * width).to(dtype).to(started.device)

    def step(module: torch.nn.Module, source: torch.Tensor) -> Callable[[], None]:
        def run() -> None:
            module.zero_grad(set_to_none=True)
            source.grad = None
            module(source)[0].backward(upstream)
            started.synchronize()

        return run

    cases = {
        "unfolded, learned input": step(plain, learned),
        "unfolded, fixed input": step(plain, x),
        "folded": step(folded, x),
    }
    best = _best_times(cases, options.rounds)
    return [
        {
            "dtype": str(dtype).removeprefix("torch."),
            "layer": name,
            "tokens": options.tokens,
            "hidden_size": width,
            "ms": round(seconds * 1e3, 3),
            "ratio": round(seconds / best["folded"], 2),
            "device": started.device_name,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "machine": platform.machine(),
            "date": datetime.date.today().isoformat(),
        }
        for name, seconds in best.items()
    ]


def _best_times(cases: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(rounds + 1):  # the first round warms up
        for name, run in cases.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def _print(rows: list[dict[str, object]]) -> None:
    print(f"{'dtype':10}{'norm + QKV, forward + backward':34}{'ms':>10}{'x folded':>10}")
    for row in rows:
        print(f"{row['dtype']:10}{row['layer']:34}{row['ms']:10.2f}{row['ratio']:10.1f}")


def _write(rows: list[dict[str, object]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
