"""The planner's search, its predictions against published ones, and its command line."""

import csv

import pytest

from fixedcode_megatron.config import parse_args
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.planning.command import main
from fixedcode_megatron.planning.hardware import GIB, GPUS
from fixedcode_megatron.planning.plan import flops_per_token, make_plan, with_interface
from fixedcode_megatron.planning.published import PUBLISHED
from fixedcode_megatron.planning.rank import rank_shape
from fixedcode_megatron.planning.search import layouts, search
from fixedcode_megatron.planning.states import Bucket, state_bytes


def paper_b(*flags):
    return parse_args(["--config", "paper_b_1.7b", *flags, "--print-config"], world_size=1)


def test_states_of_paper_b_on_one_rank_by_hand():
    # 1,711,376,384 parameters, all sizes multiples of 64: one buffer, padded to 128 only.
    rank = rank_shape(paper_b("--no-overlap-grad-reduce", "--no-overlap-param-gather"), 1)
    found, n = state_bytes(rank), 1_711_376_384
    assert (found.parameters, found.gradients, found.optimizer) == (2 * n, 4 * n, 12 * n)


def test_a_shard_counts_parameters_and_not_padding():
    bucket = Bucket(size=256, spans=[(0, 100), (128, 150)])
    assert [bucket.shard(replica, 2) for replica in (0, 1)] == [100, 22]
    assert [bucket.shard(replica, 4) for replica in range(4)] == [64, 36, 22, 0]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda r: f"{r.model}-{r.gpus}-{r.recompute}")
def test_predictions_are_near_published_step_times(row):
    assert abs(row.error) < (0.08 if row.gpu == "a100" else 0.2)


def test_the_layout_found_is_the_best_of_all_that_fit():
    cfg = paper_b()
    best = search(cfg, GPUS["h100"], 16)[0]
    every = [make_plan(layout, GPUS["h100"], 16) for layout in layouts(cfg, GPUS["h100"], 16)]
    assert len(every) > 50
    assert best.time.total == min(plan.time.total for plan in every if plan.fits)
    assert any(plan.time.total < best.time.total for plan in every if not plan.fits)
    again = parse_args(["--config", "paper_b_1.7b", "--print-config", *best.flags()], world_size=16)
    assert make_plan(again, GPUS["h100"], 16).time == best.time


def test_the_table_costs_what_its_parameters_cost():
    fixed = make_plan(paper_b("--micro-batch-size", "4"), GPUS["h100"], 1)
    learned = with_interface(fixed, "learned")
    table = 49_152 * 2048
    assert learned.memory.parameters - fixed.memory.parameters == pytest.approx(2 * table, rel=1e-3)
    assert learned.memory.optimizer - fixed.memory.optimizer == 12 * table
    assert learned.memory.activations == fixed.memory.activations
    assert learned.time.total > fixed.time.total


def test_more_gpus_are_faster_and_never_cheaper():
    plans = [search(paper_b(), GPUS["h100"], n)[0] for n in (8, 64, 256, 1024)]
    hours = [plan.hours(100e9) for plan in plans]
    gpu_hours = [plan.hours(100e9) * plan.world_size for plan in plans]
    assert hours == sorted(hours, reverse=True) and gpu_hours == sorted(gpu_hours)


def test_what_cannot_be_planned_says_why():
    with pytest.raises(UserError, match=r"no layout of 8 h100 fits: the leanest needs \d+ GiB"):
        search(paper_b("--num-layers", "192", "--hidden-size", "16384"), GPUS["h100"], 8)
    with pytest.raises(UserError, match="shares out --global-batch-size 1024"):
        search(paper_b(), GPUS["h100"], 11 * 13)
    with pytest.raises(UserError, match="lowdim; use learned or a fixed one"):
        rank_shape(paper_b("--input-interface", "lowdim"), 1)
    cfg = paper_b()
    cfg.optimizer.optimizer = "muon"
    with pytest.raises(UserError, match="--optimizer muon; use adam"):
        rank_shape(cfg, 1)


def test_command_writes_what_it_prints(tmp_path, capsys):
    table = tmp_path / "plan.csv"
    status = main(
        f"--config paper_b_1.7b --gpus 8 64 --gpu h200 --tokens 1e9 --csv {table}".split()
    )
    printed = capsys.readouterr().out
    assert status == 0 and "1.0B tokens, 1024 sequences of 2048 a step, h200" in printed
    with table.open() as file:
        found = list(csv.DictReader(file))
    assert [(r["gpus"], r["interface"]) for r in found] == [
        ("8", "binary"), ("8", "learned"), ("64", "binary"), ("64", "learned"),
    ]  # fmt: skip
    for row in found:
        hours = 1e9 / float(row["tokens_per_second"]) / 3600
        assert float(row["hours"]) == pytest.approx(hours, abs=0.01)
    fixed = sum(
        int(found[0][f"{name}_bytes"])
        for name in ("parameters", "gradients", "optimizer", "activations", "fp8_weights")
    )
    assert f"{fixed / GIB:.1f}" in printed


def test_command_reports_mistakes_of_training_flags(capsys):
    assert main(["--config", "paper_b_1.7b", "--hiden-size", "8"]) == 2
    assert "--hiden-size: no such flag" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--top 0", "--top: 0: give a whole number of at least 1"),
        ("--gpus 8 0", "--gpus: 0: give a whole number"),
        ("--tokens nan", "--tokens: nan: give a number above 0"),
        ("--price -1", "--price: -1: give a number above 0"),
        ("--csv nowhere/plan.csv", "there is no folder nowhere"),
    ],
)
def test_options_out_of_range_are_refused(flags, message, capsys):
    with pytest.raises(SystemExit) as status:
        main(["--config", "paper_b_1.7b", *flags.split()])
    assert status.value.code == 2 and message in capsys.readouterr().err


def test_utilisation_is_of_the_peak_of_the_precision():
    plan = make_plan(paper_b("--fp8-format", "hybrid", "--bf16"), GPUS["h100"], 1)
    # NVIDIA's data sheet: 1,978.9 TFLOP/s dense in FP8.
    flops = plan.tokens_per_second * flops_per_token(plan.cfg)
    assert plan.mfu == pytest.approx(flops / 1978.9e12, rel=1e-3)
    with pytest.raises(UserError, match="--gpu a100 has no FP8 units"):
        make_plan(plan.cfg, GPUS["a100"], 1)
