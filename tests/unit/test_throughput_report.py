"""What is made of measured throughput: ratios within rounds, speeds, tables, files."""

import csv

import pytest

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.planning.stopwatch import PARTS, Stopwatch
from fixedcode_megatron.planning.throughput import Measurement, Variant
from fixedcode_megatron.planning.throughput_command import _config, _parser, main
from fixedcode_megatron.planning.throughput_report import draw, table, write_csv
from fixedcode_megatron.planning.variants import check_variants


def measurement():
    """Two variants; the second is 25 % faster in every round of a machine that slows down."""
    sizes = dict(parameters=10 * 2**20, gradients=0, optimizer=0, activations=2**20)
    parts = dict.fromkeys(PARTS, 0.5)
    learned = Variant(name="learned", seconds=[1.0, 2.0, 4.0], parts=[parts] * 3, memory=sizes)
    binary = Variant(name="binary", seconds=[0.8, 1.6, 3.2], parts=[parts] * 3, memory=sizes)
    learned.joules = [1000.0] * 3
    return Measurement(
        variants=[learned, binary],
        tokens=8000,
        world_size=4,
        device_name="NVIDIA H100 80GB HBM3",
        flops_per_token=1e9,
        peak=1e13,
    )


def test_drift_cancels_in_the_ratios():
    found = measurement()
    assert found.ratios(found.variants[1]) == pytest.approx([1.25, 1.25, 1.25])


def test_speed_utilisation_and_energy_by_hand():
    found = measurement()
    learned = found.variants[0]
    assert found.tokens_per_second(learned) == 4000  # the median step takes 2 s
    assert found.mfu(learned) == pytest.approx(4000 * 1e9 / 4 / 1e13)
    line = next(row for row in table(found).splitlines() if row.startswith("learned"))
    # 1000 J a step on 4 GPUs in 2 s are 125 W each; 8000 tokens / 1000 J.
    assert line.split() == [
        "learned", "2000.00", "4,000", "1,000", "10.0%", "1.000", "1.000", "..", "1.000", "125",
        "8.0",
    ]  # fmt: skip


def test_files_hold_every_round(tmp_path):
    found = measurement()
    write_csv(found, tmp_path / "t.csv")
    draw(found, tmp_path / "t.png")
    with (tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["variant"], r["round"], float(r["step_ms"])) for r in rows] == [
        ("learned", "0", 1000), ("learned", "1", 2000), ("learned", "2", 4000),
        ("binary", "0", 800), ("binary", "1", 1600), ("binary", "2", 3200),
    ]  # fmt: skip
    assert {r["ratio"] for r in rows[3:]} == {"1.25"}
    assert (tmp_path / "t.png").stat().st_size > 5000


def test_stopwatch_gives_each_part_the_time_before_its_mark():
    now = iter([0.0, 1.0, 3.0, 7.0, 8.0])
    watch = Stopwatch(lambda: None, lambda: next(now))
    watch.mark()  # 1 s of other
    watch.mark("layers", then="head and loss")  # 2 s
    watch.mark()  # 4 s of what was announced
    watch.mark("optimizer")
    assert watch.seconds == {
        "input interface": 0, "layers": 2, "head and loss": 4, "gradient reduction": 0,
        "optimizer": 1, "other": 1,
    }  # fmt: skip


def test_unknown_variants_are_refused(capsys):
    assert main(["--variants", "binary", "gf3"]) == 2
    assert "--variants gf3: unknown; use learned, binary" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--rounds 0", "--rounds: 0: give a whole number of at least 1"),
        ("--steps -2", "--steps: -2: give a whole number"),
        ("--csv nowhere/t.csv", "there is no folder nowhere"),
    ],
)
def test_options_that_measure_nothing_are_refused(flags, message, capsys):
    with pytest.raises(SystemExit) as status:
        main(flags.split())
    assert status.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--vocab-size 1024 --variants binary lowdim+fold", "--variants lowdim+fold: --fold-first"),
        ("--vocab-size 1024 --variants binary+fold --hidden-dropout 0.1", "leave binary+fold out"),
        ("--tokenizer-model unused --variants binary", "give --vocab-size"),
    ],
)
def test_variants_that_cannot_be_built_are_refused_before_any_is_measured(flags, message):
    shape = "--num-layers 1 --hidden-size 40 --num-attention-heads 2 --seq-length 16 "
    shape += "--micro-batch-size 1 --global-batch-size 1 --transformer-impl local "
    options, training = _parser().parse_known_args((shape + flags).split())
    with pytest.raises(UserError, match=message.replace("+", r"\+")):
        check_variants(_config(training), options.variants)
