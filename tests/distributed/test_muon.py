"""Muon of the package emerging-optimizers: one update by hand, layouts, checkpoints, refusals."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import pytest
import torch

from fixedcode_megatron.training.checkpoint_files import checkpoint_path
from tests.distributed import cases, checkpoint_cases, guard_cases
from tests.distributed.conftest import Run
from tests.distributed.ranks import run_ranks
from tests.distributed.test_checkpoints import exact_figures


def lacks() -> str | None:
    """Why Muon cannot run here; megatron-core is imported only where the package lies."""
    if importlib.util.find_spec("emerging_optimizers") is None:
        return "emerging-optimizers is not on the path (`make test` fetches it)"
    return importlib.import_module("fixedcode_megatron.config.checks_muon").missing()


pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(lacks() is not None, reason=lacks() or ""),
]

# Its products are BF16 by default: equal at any layout only up to that.
MUON = "--optimizer muon --muon-fp32-matmul-prec highest"
SHORT = f"{MUON} --train-iters 4 --lr-warmup-iters 1"
TP2 = "--tensor-model-parallel-size 2 --muon-tp-mode duplicated"
SP = "--sequence-parallel"
MOE = "--num-experts 4 --moe-token-dispatcher-type alltoall"
QUINTIC = [
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]
SIMPLE = [(3.4445, -4.7750, 2.0315)] * 3


def one_update(argv: list[str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], float]:
    """Weights before and after an iteration, what the optimizer keeps of each, gradient norm."""
    trainer, before, norm = cases.one_update(argv)
    kept = {
        name: dict(part.optimizer.state[weight])
        for part in trainer.optimizer.chained_optimizers
        for name, weight in trainer.models[0].module.named_parameters()
        if weight in part.optimizer.state
    }
    return before, cases.weights_of(trainer), kept, norm


def orthogonalized(
    matrix: torch.Tensor, steps: list[tuple[float, float, float]], scale: str
) -> torch.Tensor:
    """Newton-Schulz by singular values: each goes through the odd polynomials on its own."""
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.square().sum().sqrt()
    for a, b, c in steps:
        s = a * s + b * s**3 + c * s**5
    rows, columns = matrix.shape
    factor = {"spectral": max(rows, columns), "unit_rms_norm": rows / columns}[scale]
    return math.sqrt(factor) * (u * s) @ v


def split_queries_keys_values(matrix: torch.Tensor, update: Any) -> torch.Tensor:
    """`update` of queries, keys and values each: two groups of 2 heads, 1 key, 1 value, 18 wide."""
    groups = matrix.view(2, 4 * 18, -1)
    parts = [groups[:, rows] for rows in (slice(0, 36), slice(36, 54), slice(54, 72))]
    done = [update(part.reshape(-1, matrix.shape[1])).view(part.shape) for part in parts]
    return torch.cat(done, dim=1).view(matrix.shape)


@pytest.mark.parametrize(
    "flags, momentum, steps, scale, factor, split",
    [
        ("", 0.95, QUINTIC, "spectral", 1.0, True),
        (
            "--muon-momentum 0.8 --muon-num-ns-steps 3 --muon-coefficient-type simple "
            "--muon-scale-mode unit_rms_norm --muon-extra-scale-factor 0.2 --muon-no-split-qkv",
            *(0.8, SIMPLE, "unit_rms_norm", 0.2, False),
        ),
    ],
)
def test_first_update(base_flags, flags, momentum, steps, scale, factor, split):
    """Matrices inside the layers are Muon's; norms, head and table are Adam's."""
    flags = f"{MUON} --num-query-groups 2 --lr-warmup-iters 0 --clip-grad 0.05 {flags}"
    flags += " --input-interface lowdim --global-batch-size 4"
    [gradients] = run_ranks(1, cases.gradients, [*base_flags, *flags.split()])
    [(before, after, kept, norm)] = run_ranks(1, one_update, [*base_flags, *flags.split()])
    squares = sum(float(gradient.double().square().sum()) for gradient in gradients.values())
    assert norm == pytest.approx(math.sqrt(squares), rel=1e-5)

    def update(matrix: torch.Tensor) -> torch.Tensor:
        return factor * orthogonalized(matrix, steps, scale)

    matrices = 0
    for name, weight in before.items():
        gradient = gradients[name].double() * 0.05 / math.sqrt(squares)
        decayed = weight.double() * (1 - 4e-3 * (0.1 if weight.dim() > 1 else 0))
        if "decoder.layers" in name and weight.dim() == 2:
            matrices += 1
            assert kept[name].keys() == {"momentum_buffer"}
            found = kept[name]["momentum_buffer"].double()
            torch.testing.assert_close(found, (1 - momentum) * gradient, rtol=1e-4, atol=1e-9)
            step = (
                split_queries_keys_values(gradient, update)
                if split and "qkv" in name
                else update(gradient)
            )
        else:
            assert kept[name].keys() == {"exp_avg", "exp_avg_sq"}
            step = gradient / (gradient.abs() + 1e-8)
        expected = decayed - 4e-3 * step
        torch.testing.assert_close(after[name].double(), expected, rtol=0, atol=5e-6, msg=name)
    assert matrices == 16


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def alone(train):
    """One rank's run of a model, once each."""
    runs: dict[str, Run] = {}

    def get(model: str) -> Run:
        if model not in runs:
            runs[model] = train(f"{MUON} {model}")
        return runs[model]

    return get


@pytest.mark.parametrize(
    "ranks, model, layout",
    [
        (2, "--input-interface binary", ""),
        (2, "--input-interface binary", f"{TP2} {SP}"),
        slow(2, "--input-interface learned", TP2),
        slow(2, "--num-query-groups 2", TP2),
        slow(2, "--input-interface binary", f"{TP2} --muon-tp-mode distributed"),
        slow(2, "--input-interface binary", "--pipeline-model-parallel-size 2"),
        slow(2, "--input-interface binary", "--context-parallel-size 2"),
        slow(2, MOE, "--expert-model-parallel-size 2"),
        slow(2, MOE, f"{TP2} {SP}"),
        slow(
            *(2, MOE),
            f"{TP2} {SP} --expert-model-parallel-size 2 --expert-tensor-parallel-size 1",
        ),
    ],
)
def test_twenty_losses_equal_one_process(train, alone, ranks, model, layout):
    expected, run = alone(model), train(f"{MUON} {model} {layout}", ranks=ranks)
    assert run.status == 0 and len(run.losses) == 20
    assert run.losses == pytest.approx(expected.losses, abs=1e-5)
    assert run.column("grad norm") == pytest.approx(expected.column("grad norm"), abs=1e-5)
    assert run.losses[-1] < run.losses[0] - 0.5


def tensors(*checkpoints: Any) -> list[dict[str, torch.Tensor]]:
    """The tensors of checkpoints of iterations, as folders and iterations."""
    paths = [checkpoint_path(folder, iteration) for folder, iteration in checkpoints]
    [found] = run_ranks(1, checkpoint_cases.tensors_of, paths)
    return found


def assert_same(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> None:
    assert before.keys() == after.keys()
    for kind in ("momentum_buffer.decoder", "exp_avg.output_layer", "exp_avg_sq.output_layer"):
        assert any(kind in key for key in before), kind
    assert [key for key in before if not torch.equal(before[key], after[key])] == []


@pytest.mark.parametrize(
    "ranks, layout",
    [
        (1, "--bf16"),
        slow(1, ""),
        slow(2, ""),
        slow(2, f"{TP2} {SP}"),
        slow(2, "--pipeline-model-parallel-size 2"),
        slow(2, f"{MOE} --expert-model-parallel-size 2"),
        slow(
            *(4, "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout E|tt|tt|L"),
        ),
    ],
)
def test_two_save_resume_two_equals_four_bit_for_bit(train, tmp_path, ranks, layout):
    flags = f"{SHORT} --input-interface binary --hidden-dropout 0.1 {layout}"
    straight = train(f"{flags} --save {tmp_path / 'a'}", ranks=ranks)
    there = f"--save {tmp_path / 'b'} --load {tmp_path / 'b'}"
    first = train(f"{flags} {there} --exit-interval 2", ranks=ranks)
    second = train(f"{flags} {there}", ranks=ranks)
    assert exact_figures(first) + exact_figures(second) == exact_figures(straight)
    assert_same(*tensors((tmp_path / "a", 4), (tmp_path / "b", 4)))


def test_a_checkpoint_goes_on_at_another_layout(base_flags, train, tmp_path):
    """From TP 2 to one rank: what was loaded is saved again, bit for bit; losses go on."""
    saved, again, folder = (tmp_path / name for name in ("saved", "again", "run"))
    flags = f"{SHORT} --save {saved} --save-interval 2"
    run = train(f"{flags} {TP2} {SP}", ranks=2)
    argv = [*base_flags, *SHORT.split(), "--load", str(saved), "--ckpt-step", "2"]
    argv += ["--run-dir", str(folder)]
    assert run_ranks(1, checkpoint_cases.run_saving_what_was_loaded, argv, again) == [0]
    assert_same(*tensors((saved, 2), (again, 2)))
    assert Run(folder, 0).losses == pytest.approx(run.losses[2:], abs=1e-5)
    refused = train(f"--train-iters 4 --lr-warmup-iters 1 --load {saved}")
    assert refused.status == 2
    assert "was saved with --optimizer muon, here is adam" in log_of(refused)


def log_of(run: Run) -> str:
    return (run.folder / "rank0.log").read_text()


def test_a_bad_iteration_is_left_out_and_memory_is_counted(base_flags, train, tmp_path):
    """A layer has 41,472 weights in matrices and 144 in norms; final norm 72, head 512 x 72."""
    flags = f"{SHORT} --log-interval 1 --eval-iters 0"
    argv = [*base_flags, *flags.split(), "--run-dir", str(tmp_path)]
    assert run_ranks(1, guard_cases.with_scaled_loss, argv, [3], rank=0, factor=math.nan) == [0]
    run, skipped = Run(tmp_path, 0), train(f"{flags} --iterations-to-skip 3")
    assert run.losses[2] is None and run.losses == skipped.losses
    row = run.rows()[-1]
    norms = [row[f"grad norm {part}"] or 0.0 for part in ("input", "layers", "head")]
    assert math.hypot(*norms) == pytest.approx(row["grad norm"], rel=1e-5)
    assert row["memory optimizer (bytes)"] == 4 * (4 * 41_472) + 8 * (4 * 144 + 72 + 512 * 72)


@pytest.mark.parametrize(
    "flags, part",
    [
        ("--use-distributed-optimizer", "with --use-distributed-optimizer"),
        ("--no-decoupled-weight-decay", "with --no-decoupled-weight-decay"),
        ("--tensor-model-parallel-size 2", "--muon-tp-mode blockwise"),
        ("--muon-tp-mode x", "must be one of blockwise, duplicated, distributed"),
        ("--muon-coefficient-type x", "must be one of simple, quintic"),
        ("--muon-num-ns-steps 0", "must be at least 1"),
        ("--muon-momentum 1", "must be at least 0 and below 1"),
        ("--muon-scalar-optimizer lion", "left to adam"),
        ("--use-layer-wise-distributed-optimizer", "whole on every rank"),
    ],
)
def test_refused(base_flags, flags, part):
    from fixedcode_megatron.config import ConfigError, parse_args

    with pytest.raises(ConfigError, match=part):
        parse_args([*base_flags, *MUON.split(), *flags.split()], world_size=2)
