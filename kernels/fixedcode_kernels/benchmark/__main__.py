"""``python -m fixedcode_kernels.benchmark``: measure, print a table, append to a CSV file."""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib.metadata
import platform
from pathlib import Path

import torch

from fixedcode_kernels import backends, token_code_embedding
from fixedcode_kernels.benchmark.candidates import Size, Suite, codes
from fixedcode_kernels.benchmark.timing import call_overhead, keep_memory, measure

Row = dict[str, object]
FIELDS = (
    "date",
    "device",
    "threads",
    "torch",
    "triton",
    "dtype",
    "tokens",
    "hidden",
    "vocab",
    "what",
    "ms",
    "best_ms",
    "must_move_bytes",
    "gb_per_s",
    "times_fill",
    "times_op",
)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fixedcode_kernels.benchmark", description=__doc__)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bf16", "fp32"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[8192], help="multiples of 4")
    parser.add_argument("--hidden-size", type=int, default=2048)
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--seconds", type=float, default=10.0, help="per dtype and size")
    parser.add_argument("--no-learned", action="store_true", help="leave the learned tables out")
    parser.add_argument(
        "--default-allocator", action="store_true", help="leave glibc's allocator as it is"
    )
    parser.add_argument("--csv", type=Path, help="append one row per figure")
    parser.add_argument("--plot", type=Path, help="draw the CSV file's figures (matplotlib)")
    return parser.parse_args(arguments)


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(": ", 1)[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def cache_bytes(device: torch.device) -> int:
    """Return the size of the last cache, or 64 MiB where it is not known."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    try:
        caches = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
        return max(int(path.read_text().strip().rstrip("K")) * 1024 for path in caches)
    except (OSError, ValueError):
        return 64 * 2**20


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def run_size(size: Size, device: torch.device, options: argparse.Namespace) -> list[Row]:
    """Measure one dtype and number of tokens; return CSV rows."""
    suite = Suite(size, device, min(cache_bytes(device), 256 * 2**20))
    suite.add_op()
    if not options.no_learned:
        suite.add_torch_embedding()
        reason = suite.add_megatron_embedding()
        if reason:
            print(f"megatron-core embedding left out: {reason}")
    timings = measure(suite.candidates, device, options.seconds)
    common: Row = {
        "date": datetime.date.today().isoformat(),
        "device": device_name(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else "",
        "torch": torch.__version__,
        "triton": version_of("triton"),
        "dtype": str(size.dtype).removeprefix("torch."),
        "tokens": size.batch * size.length,
        "hidden": size.hidden,
        "vocab": size.vocab,
    }
    op = next(timing for name, timing in timings.items() if name.startswith("op "))
    rows: list[Row] = []
    for name, timing in timings.items():
        figures: Row = {
            "what": name,
            "ms": f"{timing.median:.4f}",
            "best_ms": f"{timing.best:.4f}",
            "must_move_bytes": suite.bytes[name],
            "gb_per_s": f"{suite.bytes[name] / timing.best / 1e6:.1f}",
            "times_fill": f"{timing.best / timings['fill'].best:.2f}",
            "times_op": f"{timing.best / op.best:.2f}",
        }
        rows.append(common | figures)
    rows.append(
        common | {"what": "host time of a call on one token", "ms": f"{overhead(device):.4f}"}
    )
    return rows


def overhead(device: torch.device) -> float:
    """Return the milliseconds that a call on a single token takes on the host."""
    ids = torch.zeros(1, 1, dtype=torch.int64, device=device)
    code = codes(49152)["gf2"]
    return call_overhead(lambda: token_code_embedding(ids, code, 16), device) / 1e3


def print_rows(rows: list[Row]) -> None:
    first = rows[0]
    print(f"\n{first['dtype']}, {first['tokens']} tokens x {first['hidden']}, {first['device']}")
    print(f"{'':64s}{'median ms':>10s}{'best ms':>10s}{'GB/s':>8s}{'x fill':>8s}{'x op':>8s}")
    for row in rows:
        if "best_ms" not in row:  # the call overhead
            print(f"{row['what']:64s}{row['ms']:>10}")
            continue
        print(
            f"{row['what']:64s}{row['ms']:>10}{row['best_ms']:>10}"
            f"{row['gb_per_s']:>8}{row['times_fill']:>8}{row['times_op']:>8}"
        )


def append_csv(path: Path, rows: list[Row]) -> None:
    fresh = not path.exists() or path.stat().st_size == 0
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(rows)


def main(arguments: list[str] | None = None) -> None:
    options = parse_arguments(arguments)
    device = torch.device(options.device)
    if device.type == "cpu" and not options.default_allocator:
        keep_memory()
    print(*backends(), sep="\n")
    for tokens in options.tokens:
        for name in options.dtypes:
            size = Size(4, tokens // 4, options.hidden_size, options.vocab_size, DTYPES[name])
            rows = run_size(size, device, options)
            print_rows(rows)
            if options.csv:
                append_csv(options.csv, rows)
    if options.plot:
        if not options.csv:
            raise SystemExit("--plot draws what --csv holds; give both")
        from fixedcode_kernels.benchmark.plot import plot

        plot(options.csv, options.plot)


if __name__ == "__main__":
    main()
