"""The benchmark: what it counts and compares, on sizes that take no time."""

import csv
import itertools

import pytest
import torch

from fixedcode_kernels.benchmark.__main__ import main
from fixedcode_kernels.benchmark.candidates import Size, Suite
from fixedcode_kernels.benchmark.timing import call_overhead, measure

CPU = torch.device("cpu")


def suite_of(batch=2, length=3, hidden=8, vocab=10):
    return Suite(Size(batch, length, hidden, vocab, torch.float32), CPU, cache_bytes=1000)


def test_csv_and_plot(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    table, image = tmp_path / "out.csv", tmp_path / "out.png"
    options = ["--device", "cpu", "--no-learned", "--tokens", "64", "--hidden-size", "32"]
    options += ["--vocab-size", "100", "--seconds", "0", "--dtypes", "bf16"]
    main([*options, "--csv", str(table), "--plot", str(image)])
    main([*options, "--csv", str(table)])  # appends
    rows = list(csv.DictReader(table.open(newline="")))
    assert len(rows) % 2 == 0 and rows[0]["date"] and rows[0]["torch"] == torch.__version__
    moved = {row["what"]: row["must_move_bytes"] for row in rows}
    assert moved["fill"] == "4096"  # 64 x 32 elements of 2 bytes
    assert moved["op binary (table)"] == "4608"  # and 64 ids of 8 bytes
    assert moved["op gf2 (table)"] == "4608"
    assert image.read_bytes()[1:4] == b"PNG"
    assert "GB/s" in capsys.readouterr().out


def test_candidates_of_the_op_write_the_output_whose_turn_it_is():
    suite = suite_of()
    suite.add_op()
    suite.candidates["op binary (table)"](1)
    token = int(suite.ids[1, 2])
    bits = [float(token >> bit & 1) for bit in range(4)]
    assert suite.outputs[1][2, 1].tolist() == bits * 2
    assert suite.outputs[0].count_nonzero() == 0
    assert sum(out.nbytes for out in suite.outputs) >= 2 * 1000


def test_the_learned_rival_does_the_whole_work():
    suite = suite_of()
    suite.add_torch_embedding()
    backward = "torch embedding, forward + backward to FP32 main grad"
    both = suite.candidates[backward]
    main_grad = both.__closure__[[*both.__code__.co_freevars].index("main_grad")].cell_contents
    both(0)
    expected = torch.zeros(10, 8)
    for n in range(2):
        for s in range(3):
            expected[suite.ids[n, s]] += suite.gradient[s, n]
    assert torch.allclose(main_grad, expected)
    distinct = len({int(i) for i in suite.ids.flatten()})
    # 6 x 8 elements of 4 bytes read and written forward, read backward; ids; main grad in and out
    assert suite.bytes[backward] == 3 * 192 + 48 + distinct * 8 * 8


def test_candidates_take_turns():
    seen = []
    timings = measure({"a": lambda n: seen.append("a"), "b": lambda n: seen.append("b")}, CPU, 0.0)
    # each is called and timed once, then three turns follow, of up to ten calls each
    turns = [name for name, _ in itertools.groupby(seen)]
    assert "".join(turns) == "ab" + "ab" * 3
    assert 0 <= timings["a"].best <= timings["a"].median
    assert call_overhead(lambda: None, CPU) < 100
