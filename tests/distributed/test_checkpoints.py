"""Saving, resuming and refusing checkpoints."""

from __future__ import annotations

import shutil

import pytest
import torch

from fixedcode_megatron.training.checkpoint_files import TRACKER, checkpoint_path, partial_path
from fixedcode_megatron.training.checkpoint_integrity import damage
from tests.distributed import cases, checkpoint_cases
from tests.distributed.conftest import Run
from tests.distributed.ranks import run_ranks

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
    """Also case 37: a first stage that owns nothing (`interface-alone`) saves and loads."""
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
def saved_with(train, tmp_path_factory):
    """`saved_with(interface)`: a run at TP 2 x PP 2, with checkpoints at 10 and 20."""
    runs = {}

    def get(interface):
        if interface not in runs:
            folder = tmp_path_factory.mktemp("saved")
            flags = (
                f"--input-interface {interface} --tensor-model-parallel-size 2 "
                "--pipeline-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer "
                f"--save {folder} --save-interval 10"
            )
            runs[interface] = folder, train(flags, ranks=4)
        return runs[interface]

    return get


@pytest.fixture(scope="module")
def saved(saved_with):
    return saved_with("gf2")


NEW_LAYOUTS = {
    "one": (1, ""),
    "tp4-sp": (4, "--tensor-model-parallel-size 4 --sequence-parallel"),
    "pp4": (4, "--pipeline-model-parallel-size 4"),
    "dp2": (2, ""),
    # Buckets of one parameter each, so small that the last rank's share of some is all padding.
    "dp4-small-buckets": (4, "--overlap-grad-reduce --ddp-bucket-size 1"),
}


@pytest.mark.parametrize("interface", ["binary", pytest.param("learned", marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", [*NEW_LAYOUTS, pytest.param("pp2", marks=pytest.mark.slow)])
def test_a_checkpoint_goes_on_at_another_layout(
    base_flags, saved_with, tmp_path, layout, interface
):
    """Case 35: weights and Adam's moments are the same bit for bit, losses within 1e-5.

    What was loaded is saved again by the new layout; both checkpoints are read whole by torch.
    """
    ranks, flags = (NEW_LAYOUTS | {"pp2": LAYOUTS["pp2"]})[layout]
    folder, run = saved_with(interface)
    argv = [*base_flags, *f"--input-interface {interface} --use-distributed-optimizer".split()]
    argv += [*flags.split(), "--load", str(folder), "--ckpt-step", "10", "--run-dir", str(tmp_path)]
    again = tmp_path / "again"
    function = checkpoint_cases.run_saving_what_was_loaded
    assert set(run_ranks(ranks, function, argv, again)) == {0}
    [(before, after)] = run_ranks(
        1, checkpoint_cases.tensors_of, [checkpoint_path(folder, 10), checkpoint_path(again, 10)]
    )
    assert before.keys() == after.keys()
    for kind in ("decoder.layers.mlp.linear_fc1.weight", "exp_avg.", "exp_avg_sq."):
        assert any(kind in key for key in before)
    assert [key for key in before if not torch.equal(before[key], after[key])] == []
    resumed = Run(tmp_path, 0)
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
    """Case 30."""
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


@pytest.mark.parametrize("layout", ["--tensor-model-parallel-size 2", ""], ids=["tp2", "dp2"])
def test_each_rank_has_its_own_random_states_back(base_flags, tmp_path, layout):
    """Case 34: 2 ranks in different states; nobody gets its peer's."""
    argv = [*base_flags, *layout.split(), "--no-save-optim"]
    both = run_ranks(2, checkpoint_cases.random_states, argv, tmp_path)
    for saved, restored in both:
        assert saved == restored
    assert all(one != other for one, other in zip(both[0][0], both[1][0], strict=True))


FIVE = "--eval-iters 0 --lr-warmup-iters 2 --train-iters 10 --exit-interval 5"
DECAY = "--weight-decay-incr-style linear --start-weight-decay 0.0 --end-weight-decay 0.2"


def test_learning_rate_and_weight_decay_of_a_resumed_run(base_flags, tmp_path):
    """Case 32: those of each update after a resume, and the flags' own where they are to hold.

    Parameters that do not decay (norms) keep that.
    """

    def settings(folder, flags=""):
        where = f"--save {folder} --load {folder} --run-dir {folder}/run {FIVE} {DECAY} {flags}"
        argv = [*base_flags, *where.split()]
        [found] = run_ranks(1, checkpoint_cases.settings_of_each_step, argv)
        return found

    straight = settings(tmp_path / "straight", "--exit-interval 10")
    higher = settings(tmp_path / "higher", "--exit-interval 10 --lr 8e-3")
    assert len(straight) == 10 and {0.0} < {wd for step in straight for _, wd in step}
    assert straight[5] != higher[5] != straight[9]
    first = settings(tmp_path / "a")
    for copy in "bc":
        shutil.copytree(tmp_path / "a", tmp_path / copy)
    assert first + settings(tmp_path / "a") == straight
    refused = f"--load {tmp_path / 'b'} --run-dir {tmp_path / 'r'} {FIVE} {DECAY} --lr 8e-3"
    argv = [*base_flags, *refused.split()]
    assert run_ranks(1, cases.run_main, argv, output=tmp_path) == [2]
    assert "--override-opt-param-scheduler" in (tmp_path / "rank0.log").read_text()
    kept = settings(tmp_path / "b", "--lr 8e-3 --use-checkpoint-opt-param-scheduler")
    assert kept == straight[5:]
    changed = settings(tmp_path / "c", "--lr 8e-3 --override-opt-param-scheduler")
    assert changed == higher[5:]


LOCAL = "--eval-iters 0 --train-iters 4 --exit-interval 2"


def test_fp8_states_may_be_missing_weights_may_not(base_flags, tmp_path):
    """Case 31: checkpoints move between Transformer Engine's layers, which have such states."""
    where = f"--save {tmp_path} --load {tmp_path} --run-dir {tmp_path / 'run'} {LOCAL}"
    argv = [*base_flags, *where.split()]
    lacking = "mlp.linear_fc1._extra_state"
    assert run_ranks(1, checkpoint_cases.run_leaving_out, argv, lacking) == [0]
    # Loads what lacks its states, and saves them; then the other way round.
    function = checkpoint_cases.run_with_state_in_attention
    assert run_ranks(1, function, [*argv, "--exit-interval", "3"], output=tmp_path / "b") == [0]
    assert run_ranks(1, cases.run_main, argv, output=tmp_path / "c") == [0]
    for log in ("b", "c"):
        text = (tmp_path / log / "rank0.log").read_text()
        assert "extra_state" not in text and "continuing from" in text


def test_a_missing_weight_is_named(base_flags, tmp_path):
    """Case 31."""
    where = f"--save {tmp_path} --load {tmp_path} --run-dir {tmp_path / 'run'} {LOCAL}"
    argv = [*base_flags, *where.split()]
    run_ranks(1, checkpoint_cases.run_leaving_out, argv, "mlp.linear_fc1.weight")
    assert run_ranks(2, cases.run_main, argv, output=tmp_path) == [2, 2]
    text = (tmp_path / "rank0.log").read_text()
    assert "it has no decoder.layers.mlp.linear_fc1.weight" in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param("", id="cut off"),
        pytest.param("--verify-integrity", id="changed", marks=pytest.mark.slow),
    ],
)
def test_a_damaged_checkpoint_is_passed_over(train, tmp_path, flags):
    """All ranks go on from the one before, say so once, and put a whole one in its place."""
    both = (
        f"--eval-iters 0 --use-distributed-optimizer {flags} --save-interval 2 "
        f"--save {tmp_path} --load {tmp_path} --train-iters 6"
    )
    first = train(f"{both} --exit-interval 4", ranks=2)
    data = bytearray((tmp_path / "iter_0000004" / "__1_0.distcp").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "iter_0000004" / "__1_0.distcp").write_bytes(data[: None if flags else -1])
    second = train(both, ranks=2)
    assert second.column("iteration") == [3, 4, 5, 6]
    assert second.losses[:2] == first.losses[2:]
    assert error_of(second).count("iter_0000004 is damaged: ") == 1
    assert "__1_0.distcp" in error_of(second)
    assert "damaged" not in (second.folder / "rank1.log").read_text()
    assert damage(tmp_path / "iter_0000004", checksums=bool(flags)) is None
