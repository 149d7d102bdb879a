"""CUDA graphs: this loop, megatron-core's and Transformer Engine's code; CUDA is stood in for."""

import json

import pytest

from fixedcode_megatron.config import parse_args
from fixedcode_megatron.config.problems import ConfigError
from tests.distributed.conftest import VOCAB_SIZE, data_prefix  # noqa: F401
from tests.transformer_engine.test_layers import WHEEL, run_without_the_compiled_part

MODEL = (
    "--num-layers 2 --hidden-size 36 --num-attention-heads 2 --ffn-hidden-size 64 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --hidden-dropout 0 --attention-dropout 0 "
    "--seq-length 32 --micro-batch-size 2 --global-batch-size 4 --lr 4e-3 --min-lr 1e-4 --bf16 "
    "--train-iters 6 --split 80,20,0 --eval-interval 4 --eval-iters 1 --log-interval 1 --seed 7 "
    "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --device cpu "
)
GPU_RUN = (
    "--config paper_b_1.7b --print-config --device cuda --precision bf16 "
    "--transformer-impl transformer_engine --cuda-graph-impl transformer_engine"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data_prefix):  # noqa: F811
    """Four runs of 6 iterations: without graphs, with, and the two that go on from each other's."""
    folder = tmp_path_factory.mktemp("graphs")
    common = f"{MODEL} --vocab-size {VOCAB_SIZE} --data-path {data_prefix}"
    wanted = {
        "without": ("off", f"--save {folder}/without_c --save-interval 3"),
        "with": ("2", f"--save {folder}/with_c --save-interval 3"),
        "go on without": ("off", f"--load {folder}/with_c --ckpt-step 3"),
        "go on with": ("1", f"--load {folder}/without_c --ckpt-step 3"),
    }
    arguments = [
        f"{name}: {graphs} {common} --run-dir {folder}/{name.replace(' ', '_')} {flags}"
        for name, (graphs, flags) in wanted.items()
    ]
    found = run_without_the_compiled_part("graph_training", *arguments)
    for name, result in found.items():
        assert result["status"] == 0
        result["losses"] = losses(folder / name.replace(" ", "_"))
    return found


def losses(run_dir):
    """Losses and gradient norms of a run."""
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [
        (row["kind"], row["iteration"], row["lm loss"], row.get("grad norm"))
        for row in rows
        if row["kind"] in ("train", "validation")
    ]


needs_wheel = pytest.mark.skipif(WHEEL is None, reason="transformer-engine's wheel is not in .venv")


@needs_wheel
def test_replays_compute_what_the_layers_compute(runs):
    reference = runs["without"]["losses"]
    assert [kind for kind, *_ in reference].count("train") == 6
    assert runs["with"]["losses"] == reference
    after = [row for row in reference if row[1] > 3]
    assert runs["go on without"]["losses"] == after
    assert runs["go on with"]["losses"] == after
    assert runs["without"]["replays"] == runs["go on without"]["replays"] == []
    # 2 layers, forward and backward; 2 micro-batches in each of 4 steps after 2, 2 after 1.
    assert runs["with"]["replays"] == [8] * 4
    assert runs["go on with"]["replays"] == [4] * 4


@needs_wheel
def test_the_loop_calls_in_order(runs):
    off, on = "hooks off, gather True", "hooks on"
    save = [off, on]
    assert runs["with"]["events"] == [
        on,  # DDP sets its hooks when it is made
        *["step", "step"],
        *["hooks off, gather False", "record, 0 hooks on layers", on, "by hand, 2 hooks"],
        *["step", *save, "step", off, "evaluate", on],
        *["step", "step", off, "evaluate", on, *save],
        "delete",
    ]
    assert runs["with"]["reset"]
    events = runs["go on with"]["events"]
    assert events.index("record, 0 hooks on layers") > events.index("step")
    assert events[-1] == "delete" and events.count("step") == 3


@needs_wheel
def test_random_states(runs):
    assert runs["without"]["tracker"] == "CudaRNGStatesTracker"
    assert runs["with"]["tracker"] == "TECudaRNGStatesTracker"
    # Data parallel, model parallel, expert parallel: a replay moves each of them on.
    assert runs["with"]["generators"] == [3]
    assert runs["with"]["states"][0] == ["SafeGenerator"] * 3
    assert runs["without"]["states"][0] == ["Tensor"] * 3


@needs_wheel
def test_collectives_of_tensor_parallel_layers_are_replayed(tmp_path, data_prefix):  # noqa: F811
    common = f"{MODEL} --vocab-size {VOCAB_SIZE} --data-path {data_prefix} --train-iters 4"
    common += " --tensor-model-parallel-size 2 --sequence-parallel"
    found = run_without_the_compiled_part(
        "graph_training",
        f"without: off {common} --run-dir {tmp_path}/without",
        f"with: 1 {common} --run-dir {tmp_path}/with",
        ranks=2,
    )
    # 2 layers, forward and backward; 2 micro-batches in each of 3 steps after 1.
    assert found["with"]["replays"] == [6] * 4
    assert losses(tmp_path / "with") == losses(tmp_path / "without")
    assert len(losses(tmp_path / "with")) == 5  # 4 iterations and an evaluation


def refusal(flags):
    with pytest.raises(ConfigError) as caught:
        parse_args([*GPU_RUN.split(), *flags.split()], world_size=2)
    return str(caught.value)


@pytest.mark.parametrize(
    "flags, found, way_out",
    [
        ("--cuda-graph-impl local", "evaluations", "use --cuda-graph-impl transformer_engine"),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", "iteration", "leave it out"),
        ("--cuda-graph-impl none --external-cuda-graph", "older name", "transformer_engine"),
        ("--cuda-graph-impl none --enable-cuda-graph", "older name", "transformer_engine"),
        ("--cuda-graph-scope moe_router", "--cuda-graph-scope moe_router", "attn or mlp"),
        ("--transformer-impl local", "mask", "--transformer-impl transformer_engine"),
        ("--precision fp32", "BF16", "--bf16"),
        ("--cuda-graph-warmup-steps 0", "--cuda-graph-warmup-steps 0", "at least 1"),
        ("--num-experts 4", "expert", "drop one"),
        ("--context-parallel-size 2 --cp-comm-type p2p", "--context-parallel-size 2", "use 1"),
        ("--fp32-residual-connection", "--fp32-residual-connection", "drop one"),
        (
            "--pipeline-model-parallel-size 2 --rampup-batch-size 8 8 1000 --global-batch-size 16 "
            "--micro-batch-size 1",
            "micro-batch",
            "drop one",
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
            "--recompute-granularity full",
            "selective",
        ),
        ("--recompute-granularity selective", "core_attn", "--cuda-graph-scope"),
        (
            "--recompute-granularity selective --recompute-modules mlp --cuda-graph-scope attn,mlp",
            "--recompute-modules mlp",
            "--cuda-graph-scope",
        ),
    ],
)
def test_refused(flags, found, way_out):
    text = refusal(flags)
    assert found in text and way_out in text, text


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--cuda-graph-scope attn",
        "--cuda-graph-scope attn,mlp",
        "--cuda-graph-scope attn --recompute-granularity selective --recompute-modules mlp",
        "--cuda-graph-scope mlp --recompute-granularity selective --recompute-modules core_attn",
        "--precision fp8_delayed",
        "--pipeline-model-parallel-size 2",
        "--tensor-model-parallel-size 2 --sequence-parallel",
    ],
)
def test_accepted(flags):
    cfg = parse_args([*GPU_RUN.split(), *flags.split()], world_size=2)
    assert cfg.transformer.use_te_rng_tracker


def test_memory_that_moves_is_refused(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert "export NCCL_GRAPH_REGISTER=0" in refusal("")
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "0")
    parse_args(GPU_RUN.split(), world_size=2)


def test_a_machine_without_a_gpu():
    run = GPU_RUN.replace("--print-config ", "").replace("--device cuda", "--device cpu")
    with pytest.raises(ConfigError, match="--cuda-graph-impl transformer_engine: needs a GPU"):
        parse_args([*run.split(), "--data-path", "unused"], world_size=1)


def test_settings_without_graphs_are_noticed():
    run = GPU_RUN.replace("--cuda-graph-impl transformer_engine", "--cuda-graph-warmup-steps 5")
    cfg = parse_args(run.split(), world_size=1)
    notice = "--cuda-graph-warmup-steps has no effect without --cuda-graph-impl"
    assert notice in cfg.notices and not cfg.transformer.use_te_rng_tracker
