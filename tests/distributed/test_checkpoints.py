"""Saving, resuming and refusing checkpoints."""

from __future__ import annotations

import pytest

from fixedcode_megatron.training.checkpoint_files import TRACKER, partial_path

pytestmark = pytest.mark.distributed

EXACT = ["iteration", "lm loss", "learning rate", "grad norm", "data checksum", "consumed samples"]
DROPOUT = "--hidden-dropout 0.1 --attention-dropout 0.1"
LAYOUTS = {
    "one": (1, DROPOUT),
    "bf16": (1, f"--bf16 {DROPOUT}"),
    "tp2-sp": (2, f"--tensor-model-parallel-size 2 --sequence-parallel {DROPOUT}"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
    "dp2-distributed-optimizer": (2, f"--use-distributed-optimizer {DROPOUT}"),
    "interface-alone": (
        4,
        "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout E|tt|tt|L "
        "--use-distributed-optimizer",
    ),
}


def exact_figures(run, start=0):
    return [[row[name] for name in EXACT] for row in run.rows()[start:]]


@pytest.mark.parametrize("interface", ["learned", "binary"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ten_save_resume_ten_equals_twenty_bit_for_bit(train, tmp_path, layout, interface):
    ranks, flags = LAYOUTS[layout]
    flags = f"--input-interface {interface} {flags}"
    straight = train(flags, ranks=ranks)
    checkpoints = tmp_path / "checkpoints"
    there = f"--save {checkpoints} --load {checkpoints}"
    first = train(f"{flags} {there} --exit-interval 10", ranks=ranks)
    assert (checkpoints / TRACKER).read_text().strip() == "10"
    second = train(f"{flags} {there}", ranks=ranks)
    assert exact_figures(first) == exact_figures(straight)[:10]
    assert exact_figures(second) == exact_figures(straight)[10:]
    assert second.column("lm loss", "validation") == straight.column("lm loss", "validation")[1:]
    assert (checkpoints / TRACKER).read_text().strip() == "20"


@pytest.fixture(scope="module")
def saved(train, tmp_path_factory):
    """A gf2 run at TP 2 x PP 2 with checkpoints at 10 and 20."""
    folder = tmp_path_factory.mktemp("saved")
    run = train(
        "--input-interface gf2 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
        f"--sequence-parallel --use-distributed-optimizer --save {folder} --save-interval 10",
        ranks=4,
    )
    return folder, run


@pytest.mark.parametrize(
    "ranks, layout",
    [
        (1, ""),
        (2, "--tensor-model-parallel-size 2"),
        (2, "--pipeline-model-parallel-size 2"),
        (2, "--use-distributed-optimizer"),
        (4, "--tensor-model-parallel-size 4 --sequence-parallel"),
    ],
    ids=["one", "tp2", "pp2", "dp2-distributed-optimizer", "tp4-sp"],
)
def test_a_checkpoint_goes_on_at_another_layout(train, saved, ranks, layout):
    folder, run = saved
    optimizer = "" if "distributed" in layout else "--use-distributed-optimizer"
    flags = f"--input-interface gf2 --load {folder} --ckpt-step 10 {layout} {optimizer}"
    resumed = train(flags, ranks=ranks)
    assert resumed.column("iteration") == list(range(11, 21))
    assert resumed.losses == pytest.approx(run.losses[10:], abs=1e-5)
    assert resumed.column("learning rate") == run.column("learning rate")[10:]


def error_of(run):
    return "".join(p.read_text() for p in sorted(run.folder.glob("rank0.log")))


@pytest.mark.parametrize(
    "flags, words",
    [
        ("--input-interface binary", ["--input-interface gf2", "binary"]),
        ("--input-interface learned", ["--input-interface gf2", "learned"]),
        ("--input-interface gf2 --code-seed 1", ["another token code", "row_masks"]),
        ("--input-interface gf2 --code-scale 2.0", ["another token code", '"scale":2.0']),
        ("--input-interface gf2 --code-lift interleave", ["another token code", "interleave"]),
        ("--input-interface gf2 --ckpt-step 999", ["999", "10, 20"]),
        ("--input-interface gf2 --no-use-distributed-optimizer", ["add the flag"]),
        ("--input-interface gf2 --num-layers 2", ["does not fit the model"]),
        ("--input-interface gf2 --lr 1e-3", ["--override-opt-param-scheduler"]),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(train, saved, flags, words):
    folder, _ = saved
    run = train(f"--use-distributed-optimizer --load {folder} {flags}")
    assert run.status == 2
    assert not (run.folder / "metrics.jsonl").exists()
    for word in words:
        assert word in error_of(run)
    assert "Traceback" not in error_of(run)


def test_load_needs_a_checkpoint_unless_it_is_the_save_folder(train, tmp_path):
    run = train(f"--load {tmp_path / 'nothing'}")
    assert run.status == 2
    assert "does not exist" in error_of(run)
    empty = tmp_path / "empty"
    empty.mkdir()
    run = train(f"--load {empty} --save {tmp_path / 'other'}")
    assert run.status == 2
    assert "holds no checkpoint" in error_of(run)
    run = train(f"--load {empty} --save {empty} --exit-interval 2")
    assert run.status == 0
    assert (empty / TRACKER).read_text().strip() == "2"


def test_leftovers_and_old_checkpoints_are_removed(train, tmp_path):
    leftover = partial_path(tmp_path, 4)
    leftover.mkdir(parents=True)
    (leftover / "__0_0.distcp").write_bytes(b"half")
    train(f"--save {tmp_path} --save-interval 2 --exit-interval 8 --keep-last-checkpoints 2")
    names = sorted(entry.name for entry in tmp_path.iterdir())
    assert names == ["iter_0000006", "iter_0000008", TRACKER]


def test_a_checkpoint_says_what_it_is(train, saved):
    from megatron.core import dist_checkpointing

    from fixedcode_megatron.codes import TokenCode

    folder, _ = saved
    common = dist_checkpointing.load_common_state_dict(str(folder / "iter_0000010"))
    assert TokenCode.from_json(common["token_code"]) == TokenCode.gf2(500)
    assert common["train_state"]["consumed_samples"] == 80
    assert common["train_state"]["consumed_tokens"] == 80 * 32
    assert common["layout"] == {"tensor": 2, "pipeline": 2, "data": 1}
    assert common["config"]["hidden_size"] == 72
    assert {"torch", "megatron-core", "fixedcode-megatron"} <= set(common["versions"])
    assert (folder / "iter_0000010" / "config.yaml").is_file()


def test_weights_alone_start_a_new_run(train, saved):
    folder, run = saved
    flags = f"--input-interface gf2 --load {folder} --finetune"
    tuned = train(f"{flags} --exit-interval 1")
    assert tuned.column("iteration") == [1]
    # Iteration 1 sees the first batch again, with the weights that 20 iterations have made.
    assert tuned.losses[0] < run.losses[0] - 0.3
