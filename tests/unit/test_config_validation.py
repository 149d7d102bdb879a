"""Checks across settings: each message names the numbers and a way out."""

import pytest

from fixedcode_megatron.config import ConfigError, availability, parse_args
from fixedcode_megatron.config.checks_model import check_vocabulary

MINIMAL = [
    "--num-layers=4",
    "--hidden-size=64",
    "--num-attention-heads=4",
    "--seq-length=64",
    "--train-iters=20",
    "--lr=1e-3",
    "--data-path=some/prefix",
    "--vocab-size=256",
]


def problems_of(*flags: str, world_size: int = 1) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_args([*MINIMAL, *flags], world_size=world_size)
    return caught.value.problems


def config(*flags: str, world_size: int = 1):
    return parse_args([*MINIMAL, *flags], world_size=world_size)


@pytest.fixture
def gpu_with_transformer_engine(monkeypatch):
    monkeypatch.setattr(availability, "on_gpu", lambda cfg: True)
    monkeypatch.setattr(availability, "importable", lambda module: True)
    # Fusions stay off: megatron-core itself looks for Transformer Engine when they are on.
    monkeypatch.setattr(availability, "missing_for", lambda field, cfg: "nothing, but for the test")


def test_six_ranks_at_tp_4():
    """Case 55."""
    (problem,) = problems_of("--tensor-model-parallel-size=4", world_size=6)
    assert "6 % 4 = 2" in problem
    assert "start 4 or 8 ranks" in problem
    assert "divides 6 (1, 2, 3, 6)" in problem


def test_global_batch_that_does_not_split():
    """Case 55."""
    (problem,) = problems_of("--global-batch-size=10", "--micro-batch-size=4", world_size=2)
    assert "10 % 8 = 2" in problem and "use 8 or 16" in problem


def test_global_batch_defaults_to_one_micro_batch_a_rank():
    layout = ["--tensor-model-parallel-size=2", "--micro-batch-size=3"]
    assert config(*layout, world_size=8).training.global_batch_size == 3 * 4


# Case 39: TP when CP = 1, CP * lcm(2, TP) when CP > 1
@pytest.mark.parametrize(
    ("tp", "cp", "multiple"), [(4, 1, 4), (3, 2, 12), (4, 4, 16), (2, 1, 2), (1, 2, 4)]
)
def test_sequence_length_multiples(gpu_with_transformer_engine, tp, cp, multiple):
    flags = [
        *("--num-attention-heads=12", "--kv-channels=4", "--ffn-hidden-size=48"),
        *(f"--tensor-model-parallel-size={tp}", f"--context-parallel-size={cp}"),
        "--sequence-parallel",
    ]
    found = problems_of(*flags, f"--seq-length={multiple + 1}", world_size=tp * cp)
    assert len(found) == 1
    assert f"must be a multiple of {multiple} " in found[0]
    assert f"use {multiple} or {2 * multiple}" in found[0]
    cfg = config(*flags, f"--seq-length={2 * multiple}", world_size=tp * cp)
    assert cfg.model.seq_length == 2 * multiple


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--seq-length=50"], None),
        (["--fp8-format=hybrid"], None),
        (["--fp8-format=hybrid", "--hidden-size=712"], "--hidden-size 712: "),
        (["--fp8-format=hybrid", "--seq-length=20", "--max-position-embeddings=20"], "of 8"),
        (["--fp8-format=hybrid", "--fp8-recipe=mxfp8", "--seq-length=40"], "of 32"),
    ],
)
def test_fp8_alignment(gpu_with_transformer_engine, flags, part):
    """Case 39."""
    flags = [*flags, "--kv-channels=64", "--bf16", "--input-interface=learned"]
    found = []
    try:
        config(*flags)
    except ConfigError as error:
        found = [p for p in error.problems if not p.startswith("megatron-core refuses")]
    assert len(found) == (0 if part is None else 1)
    assert part is None or part in found[0]


def test_width_is_checked_against_the_code():
    # V = 256 takes 8 bits, V = 257 takes 9; 64 = 8 * 8 is no multiple of 9.
    cfg = config()
    assert check_vocabulary(cfg, 256) == []
    (problem,) = check_vocabulary(cfg, 257)
    assert "64" in problem and "9" in problem and "16" in problem
    (problem,) = problems_of("--vocab-size=257")
    assert "64" in problem


@pytest.mark.parametrize("interface", ["binary", "gf2", "random", "lowdim"])
def test_tying_needs_a_table(interface):
    tied = "--no-untie-embeddings-and-output-weights"
    (problem,) = problems_of(tied, f"--input-interface={interface}")
    assert problem.startswith(tied) and "--input-interface learned" in problem
    assert not config(tied, "--input-interface=learned").model.untie_embeddings_and_output_weights


def test_interleaved_pipeline_overlaps_its_messages():
    layout = [
        *("--pipeline-model-parallel-size=2", "--virtual-pipeline-model-parallel-size=2"),
        "--global-batch-size=4",
    ]
    t = config(*layout, world_size=2).transformer
    assert t.overlap_p2p_comm is True and t.batch_p2p_comm is False
    (problem,) = problems_of(*layout, "--no-overlap-p2p-communication", world_size=2)
    assert "mixed up" in problem


def test_layers_per_virtual_stage_give_the_number_of_virtual_stages():
    cfg = config(
        *("--pipeline-model-parallel-size=2", "--num-layers-per-virtual-pipeline-stage=1"),
        "--global-batch-size=2",
        world_size=2,
    )
    assert cfg.transformer.virtual_pipeline_model_parallel_size == 2  # 4 layers / 2 ranks / 1


def test_sequence_parallel_without_tensor_parallel_is_turned_off():
    cfg = config("--sequence-parallel")
    assert cfg.transformer.sequence_parallel is False
    assert any("--sequence-parallel is off" in notice for notice in cfg.notices)


def test_bf16_gradients_add_up_in_fp32_unless_told_otherwise():
    assert config().ddp.grad_reduce_in_fp32 is False
    assert config("--bf16").ddp.grad_reduce_in_fp32 is True
    assert config("--bf16", "--grad-reduce-in-bf16").ddp.grad_reduce_in_fp32 is False


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--num-attention-heads=6"], "64 % 6 = 4; use a number of heads among 1, 2, 4, 8, 16, 32"),
        (["--num-query-groups=3"], "4 heads % 3 = 1; use a number among 1, 2, 4"),
        (["--num-layers=0"], "--num-layers 0: must be at least 1"),
        (["--log-interval=0"], "--log-interval 0: must be at least 1"),
        (["--num-experts=-1"], "--num-experts -1: must be at least 1"),
        (["--num-experts=2", "--moe-router-topk=0"], "--moe-router-topk 0: must be at least 1"),
        (
            ["--num-experts=3", "--expert-model-parallel-size=0"],
            "--expert-model-parallel-size 0: must be at least 1",
        ),
        (
            ["--num-distributed-optimizer-instances=0"],
            "--num-distributed-optimizer-instances 0: must be at least 1",
        ),
        (["--recompute-num-layers=-1"], "--recompute-num-layers -1: must be at least 1"),
        (["--save-retain-interval=0"], "--save-retain-interval 0: must be at least 1"),
        (["--max-position-embeddings=32"], "is below --seq-length 64"),
        (["--train-samples=8"], "--train-iters and --train-samples exclude each other"),
        (["--train-iters=none"], "--train-iters or --train-samples: missing"),
        (["--lr=none"], "--lr: missing"),
        (["--min-lr=1"], "must be 0 <= min-lr <= lr"),
        (["--lr-warmup-iters=20"], "--lr-warmup-iters 20: must be below the decay's length of 20"),
        (
            ["--lr-warmup-samples=2"],
            "--lr-warmup-samples with --train-iters: use --lr-warmup-iters",
        ),
        (["--optimizer=lion"], "--optimizer lion: the optimizers are adam, sgd and muon"),
        (["--adam-beta2=1"], "--adam-beta2 1.0: must be at least 0 and below 1"),
        (["--clip-grad=nan"], "--clip-grad nan: must be at least 0"),
        (["--lr-decay-style=WSD"], "needs --lr-wsd-decay-iters"),
        (
            ["--lr-decay-style=WSD", "--lr-wsd-decay-iters=5", "--lr-warmup-iters=20"],
            "--lr-warmup-iters 20: must be below the decay's length of 20",
        ),
        (["--weight-decay-incr-style=linear"], "needs --start-weight-decay and --end-weight-decay"),
        (["--rampup-batch-size", "1", "1", "9"], "needs the run's length in --train-samples"),
        (["--save-interval=5"], "--save-interval: does nothing without --save"),
        (["--ckpt-step=5"], "--ckpt-step: does nothing without --load"),
        (["--wandb-entity=x"], "--wandb-entity: does nothing without --wandb-project"),
        (["--overlap-param-gather", "--overlap-grad-reduce"], "needs --use-distributed-optimizer"),
        (["--data-path", "a/text.bin"], "give the prefix without .bin/.idx: a/text"),
        (["--data-path", "0.3", "a", "b", "c"], "a blend is WEIGHT PREFIX WEIGHT PREFIX"),
        (["--data-path", "0.3", "a", "0.7"], "a blend is WEIGHT PREFIX WEIGHT PREFIX"),
        (["--data-path", "0", "a", "0", "b"], "all weights are 0"),
        (["--data-path=none"], "--data-path: missing"),
        (["--train-data-path=x"], "exclude each other"),
        (["--split=a,b"], "takes three shares of 0 or more"),
        (["--fp8-format=hybrid"], "--fp8-format: needs the package transformer-engine"),
        (["--window-size", "8", "0"], "--window-size: needs the package transformer-engine"),
        (["--apply-rope-fusion"], "--apply-rope-fusion: needs "),
        (["--fp16"], "--fp16: needs a GPU"),
        (["--context-parallel-size=1", "--expert-model-parallel-size=2"], "without --num-experts"),
        (["--recompute-granularity=full"], "recompute_method"),
    ],
)
def test_one_problem_each(monkeypatch, flags, part):
    monkeypatch.setattr(availability, "on_gpu", lambda cfg: False)
    found = problems_of(*flags)
    assert len(found) == 1
    assert part in found[0]


def test_a_folder_is_no_prefix(tmp_path):
    (problem,) = problems_of("--data-path", str(tmp_path))
    assert "is a folder; give the prefix" in problem


def test_many_problems_in_one_go():
    found = problems_of(
        *("--tensor-model-parallel-size=4", "--data-path=a.idx", "--save-interval=3", "--split=0"),
        world_size=6,
    )
    assert len(found) == 4


def test_missing_values_are_not_reported_beside_misspelt_flags():
    with pytest.raises(ConfigError) as caught:
        parse_args(["--num-layer", "2", *MINIMAL[1:]])
    assert caught.value.problems == ["--num-layer: no such flag; did you mean --num-layers?"]


def test_without_effect_is_said():
    cfg = config("--code-seed=7", "--input-interface=binary")
    assert "--code-seed has no effect with --input-interface binary" in cfg.notices


def test_the_file_that_a_run_writes_says_nothing_without_effect(tmp_path):
    """It holds every option: those at their defaults are nobody's choice, the others are."""
    written = config("--input-interface=binary", "--adam-beta2=0.95").to_yaml()
    (tmp_path / "all.yaml").write_text(written)
    again = parse_args(["--config", str(tmp_path / "all.yaml")])
    assert not [line for line in again.notices if "no effect" in line]
    flags = ["--config", str(tmp_path / "all.yaml"), "--optimizer", "sgd", "--no-save-optim"]
    [said] = [line for line in parse_args(flags).notices if "no effect" in line]
    assert said == "--adam-beta2 has no effect with --optimizer sgd"


@pytest.mark.parametrize("action", ["--print-config", "--count-parameters"])
def test_planning_needs_neither_ranks_nor_data(action):
    flags = [f for f in MINIMAL if not f.startswith(("--data", "--lr", "--train"))]
    cfg = parse_args([*flags, "--tensor-model-parallel-size=4", action], world_size=1)
    assert cfg.transformer.tensor_model_parallel_size == 4
