"""``python -m fixedcode_kernels.check``: prove the op's backends right on the device at hand.

Needs torch alone, so that it also runs where no test tools are installed. Every check compares bit
patterns with the plain-torch reference.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fixedcode_kernels import CodeSpec, backends, reference, token_code_embedding, use_backend
from fixedcode_kernels.spec import MAX_BITS, make_lift

_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def _code(k: int, affine: bool, lift: str = "tile", **values: float) -> CodeSpec:
    generator = random.Random(k)
    masks = tuple(generator.getrandbits(k) for _ in range(k)) if affine else None
    shift = (1 << k) // 3
    return CodeSpec(
        vocab_size=1 << k, num_bits=k, row_masks=masks, shift=shift, lift=lift, **values
    )


def _expected(ids: Tensor, code: CodeSpec, hidden: int, dtype: torch.dtype) -> Tensor:
    """Return the reference's output ``[s, b, h]`` on the ids' device."""
    lift = make_lift(
        code.num_bits,
        hidden,
        dtype,
        code.row_masks or (),
        code.shift,
        code.scale,
        code.offset,
        code.lift == "interleave",
    )
    return reference.embed(ids.t(), lift)


def _assert_same(out: Tensor, expected: Tensor, what: str) -> None:
    integer = _INTEGER[out.element_size()]
    if not torch.equal(out.view(integer), expected.contiguous().view(integer)):
        raise AssertionError(f"{what}: differs from the reference")


def check_random_calls(device: torch.device, count: int = 32) -> None:
    """Codes, widths, dtypes, lifts and id layouts at random, also ids outside the code."""
    generator = random.Random(1)
    for n in range(count):
        k = generator.choice((16, generator.randint(1, MAX_BITS)))
        interleave = generator.random() < 0.3
        hidden = k * generator.randint(1, 30) if interleave else generator.randint(1, 700)
        lift = "interleave" if interleave else "tile"
        code = _code(k, n % 2 == 0, lift, scale=-1.7, offset=0.3)
        dtype, id_type = _DTYPES[n % 3], (torch.int64, torch.int32)[n // 3 % 2]
        base = torch.randint(-(2**63), 2**63 - 1, (6, 26), device=device).to(id_type)
        for ids in (base, base.t(), base[::2, ::2], base[:, 1:], base[:1].expand(6, 26)):
            out = token_code_embedding(ids, code, hidden, dtype=dtype, seq_start=2, seq_length=3)
            _assert_same(out, _expected(ids[:, 2:5], code, hidden, dtype), f"{code}, {hidden}")


def check_tall_and_wide(device: torch.device) -> None:
    """More rows, and wider ones, than 16-bit grid limits allow."""
    code = _code(17, True)
    for shape, hidden in (((1, 70_000), 64), ((2, 3), 70_000), ((70_000, 1), 17)):
        ids = torch.randint(0, 1 << 17, shape, device=device)
        out = token_code_embedding(ids, code, hidden, dtype=torch.bfloat16)
        _assert_same(out, _expected(ids, code, hidden, torch.bfloat16), f"{shape} x {hidden}")


def check_large_outputs(device: torch.device) -> None:
    """Outputs past 2^31 elements, compared at and around the crossing and at both ends."""
    code = _code(16, True)
    for rows, hidden in ((524_296, 4096), (262_152, 8192)):
        ids = torch.randint(0, 1 << 16, (1, rows), device=device)
        out = token_code_embedding(ids, code, hidden, dtype=torch.bfloat16)
        crossing = 2**31 // hidden
        for at in (0, crossing - 1, crossing, crossing + 1, rows - 1):
            expected = _expected(ids[:, at : at + 1], code, hidden, torch.bfloat16)
            _assert_same(out[at : at + 1], expected, f"row {at} of {rows} x {hidden}")
        del out


def check_empty(device: torch.device) -> None:
    """Empty batches and sequences."""
    for shape in ((0, 8), (4, 0)):
        ids = torch.empty(shape, dtype=torch.int64, device=device)
        out = token_code_embedding(ids, _code(4, True), 8, check_ids=True)
        if out.shape != (shape[1], shape[0], 8) or out.device != ids.device:
            raise AssertionError(f"ids {shape} gave {tuple(out.shape)} on {out.device}")


def check_id_range(device: torch.device) -> None:
    """The optional check names the id and its place."""
    ids = torch.tensor([[1, 2], [3, 99]], device=device)
    try:
        token_code_embedding(ids, _code(4, False), 8, check_ids=True)
    except ValueError as error:
        if "token id 99 at row 1, position 1" in str(error):
            return
        raise
    raise AssertionError("an id outside the vocabulary passed the check")


def check_deterministic(device: torch.device) -> None:
    """Two runs are equal bit for bit, also when determinism is asked for in between."""
    ids, code = torch.randint(0, 1 << 16, (4, 512), device=device), _code(16, True)
    first = token_code_embedding(ids, code, 2048, dtype=torch.bfloat16)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        second = token_code_embedding(ids, code, 2048, dtype=torch.bfloat16)
    finally:
        torch.use_deterministic_algorithms(before)
    _assert_same(second, first, "second run")


def check_graph_replay(device: torch.device) -> None:
    """A captured CUDA graph follows new ids, and the id check refuses to be captured."""
    code = _code(16, True)
    ids = torch.randint(0, 1 << 16, (4, 128), device=device)
    out = token_code_embedding(ids, code, 2048, dtype=torch.bfloat16)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        token_code_embedding(ids, code, 2048, dtype=torch.bfloat16, out=out)
        fresh = token_code_embedding(ids, code, 2048, dtype=torch.bfloat16)
        try:
            token_code_embedding(ids, code, 2048, check_ids=True)
        except ValueError as error:
            refused = "CUDA graph" in str(error)
        else:
            refused = False
    for _ in range(3):
        ids.copy_(torch.randint(0, 1 << 16, (4, 128), device=device))
        graph.replay()
        expected = _expected(ids, code, 2048, torch.bfloat16)
        _assert_same(out, expected, "replay into a given output")
        _assert_same(fresh, expected, "replay into the graph's output")
    if not refused:
        raise AssertionError("check_ids was captured")


CHECKS: dict[str, Callable[[torch.device], None]] = {
    "random calls": check_random_calls,
    "tall and wide": check_tall_and_wide,
    "outputs past 2^31 elements": check_large_outputs,
    "empty ids": check_empty,
    "id check": check_id_range,
    "deterministic": check_deterministic,
    "CUDA graph replay": check_graph_replay,
}
GPU_ONLY = {"outputs past 2^31 elements", "CUDA graph replay"}


def run(device: torch.device, names: list[str]) -> int:
    """Run every check on every backend; print a line each; return the number of failures."""
    failures = 0
    for backend in names:
        for name, check in CHECKS.items():
            if name in GPU_ONLY and device.type != "cuda":
                continue
            start = time.perf_counter()
            try:
                with use_backend(backend):
                    check(device)
                verdict = "ok"
            except Exception as error:  # reported, and the next check runs
                verdict = f"FAILED {type(error).__name__}: {error}"
                failures += 1
            seconds = time.perf_counter() - start
            print(f"{device.type:5s} {backend:8s} {name:28s} {seconds:6.1f} s  {verdict}")
    return failures


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fixedcode_kernels.check", description=__doc__)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default)
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    print(*backends(), sep="\n")
    works = [b for b in backends() if b.device == device.type]
    names = [b.name for b in works if b.chosen or b.reason.startswith("works")]
    return 1 if run(device, names) else 0


if __name__ == "__main__":
    sys.exit(main())
