"""Layouts and machines that megatron-core leaves to Megatron-LM's argument parser.

Without the checks here they train wrongly, or fail in the middle of the first step.
"""

import sys

import pytest
import torch

from fixedcode_megatron.config import ConfigError, availability, parse_args

MINIMAL = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --train-iters 20 "
    "--lr 1e-3 --data-path some/prefix --vocab-size 256 --global-batch-size 8"
).split()
PP2 = "--pipeline-model-parallel-size 2"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers"
PLAIN_LOSS = "--no-fused-linear-cross-entropy"
SELECTIVE = "--recompute-granularity selective"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(availability, "on_gpu", lambda cfg: False)


def config(flags: str, world_size: int = 1):
    return parse_args([*MINIMAL, *flags.split()], world_size=world_size)


@pytest.mark.parametrize(
    "ranks, flags, part",
    [
        (
            2,
            f"{PP2} --pipeline-model-parallel-layout Et|t|t|tL "
            "--virtual-pipeline-model-parallel-size 4",
            "the 4 stages of --pipeline-model-parallel-layout over 2 ranks make 2",
        ),
        (
            2,
            f"{PP2} --pipeline-model-parallel-layout Et|t|t|tL "
            "--num-layers-per-virtual-pipeline-stage 1",
            "the layout says it",
        ),
        (2, f"{PP2} --pipeline-model-parallel-layout Et|t|ttL", "divisible"),
        (2, f"{PP2} --pipeline-model-parallel-layout Ett|tL", "num_layers 4"),
        (
            2,
            f"{PP2} --virtual-pipeline-model-parallel-size 2 "
            "--microbatch-group-size-per-virtual-pipeline-stage 1",
            "must be at least the 2 pipeline ranks",
        ),
        (1, f"{FULL} 3", "a stage of 4 layers is no multiple of it; use a number among 1, 2, 4"),
        (2, f"{PP2} --decoder-first-pipeline-num-layers 1 {FULL} 2", "a stage of 1 layers"),
        (2, f"{PP2} --pipeline-model-parallel-layout Et|tttL {FULL} 3", "a stage of 1 layers"),
        (1, "--recompute-method uniform", "does nothing without --recompute-granularity full"),
        (1, f"{SELECTIVE} --recompute-num-layers 1", "without --recompute-granularity full"),
        (1, "--recompute-modules mlp", "without --recompute-granularity selective"),
        (1, f"{SELECTIVE} --recompute-modules moe", "there are no experts; leave them out"),
        (1, f"{FULL} 1 --distribute-saved-activations", "there is one tensor-parallel rank"),
        (4, "--num-distributed-optimizer-instances 2", "needs --use-distributed-optimizer"),
        (
            4,
            "--num-distributed-optimizer-instances 3 --use-distributed-optimizer",
            "4 data-parallel ranks % 3 = 1; use one of 1, 2, 4",
        ),
        (1, f"{PLAIN_LOSS} --cross-entropy-loss-fusion", "rounds its gradient to BF16"),
        (
            1,
            f"{PLAIN_LOSS} --bf16 --cross-entropy-loss-fusion --cross-entropy-fusion-impl te",
            "transformer-engine",
        ),
        (1, "--calculate-per-token-loss --ddp-average-in-collective", "drop one"),
        (2, "--num-experts 3 --expert-model-parallel-size 2", "3 % 2 = 1; use a size among 1, 3"),
        (2, "--num-experts 4 --tensor-model-parallel-size 2", "needs --sequence-parallel"),
        (1, "--num-experts 4 --moe-router-topk 6", "there are 4 experts; use at most that"),
        (
            4,
            "--num-experts 4 --expert-model-parallel-size 2 --tensor-model-parallel-size 2 "
            "--sequence-parallel --expert-tensor-parallel-size 3",
            "make 6, 4 % 6 = 4; start 6 or 12 ranks, or choose sizes whose product divides 4 (1, 2",
        ),
        (
            4,
            "--num-experts 4 --expert-model-parallel-size 2 --tensor-model-parallel-size 2 "
            "--sequence-parallel --moe-token-dispatcher-type alltoall",
            "gloo gathers equal parts only; use --expert-tensor-parallel-size 1 or "
            "--moe-token-dispatcher-type allgather",
        ),
        (1, "--num-experts 4 --moe-grouped-gemm", "needs the package transformer-engine"),
        (1, "--moe-aux-loss-coeff 0.1", "does nothing without --num-experts"),
        (1, "--expert-model-parallel-size 2", "does nothing without --num-experts"),
        (1, "--nccl-ub", "needs GPUs"),
        (1, "--optimizer-cpu-offload", "needs --use-precision-aware-optimizer"),
        (1, "--transformer-impl transformer_engine", "transformer-engine[pytorch], version 2.1"),
    ],
)
def test_refused(monkeypatch, ranks, flags, part):
    importable = availability.importable
    monkeypatch.setattr(availability, "importable", lambda m: m == "einops" or importable(m))
    with pytest.raises(ConfigError) as caught:
        config(flags, ranks)
    assert len(caught.value.problems) == 1, caught.value.problems
    assert part in caught.value.problems[0]


def test_a_layout_of_more_stages_than_ranks_is_interleaved():
    """megatron-core would build the first half of each rank's layers, and stop at the schedule."""
    t = config(f"{PP2} --pipeline-model-parallel-layout Et|t|t|tL", 2).transformer
    assert t.virtual_pipeline_model_parallel_size == 2
    assert t.overlap_p2p_comm and not t.batch_p2p_comm
    t = config(f"{PP2} --pipeline-model-parallel-layout Et|tttL", 2).transformer
    assert t.virtual_pipeline_model_parallel_size is None


def test_uniform_recompute_knows_the_layers_of_a_layout():
    layout = "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout E|tt|tt|L"
    assert config(f"{layout} {FULL} 2", 4).transformer.recompute_num_layers == 2


def test_input_and_head_count_as_layers_of_virtual_stages():
    flags = (
        "--num-layers 6 --account-for-embedding-in-pipeline-split "
        f"--account-for-loss-in-pipeline-split {PP2} --num-layers-per-virtual-pipeline-stage 2"
    )
    # (6 + 2) / (2 ranks * 2 layers)
    assert config(flags, 2).transformer.virtual_pipeline_model_parallel_size == 2


@pytest.mark.parametrize(
    "ranks, flags", [(1, "--overlap-p2p-comm"), (2, f"{PP2} --overlap-p2p-comm")]
)
def test_messages_overlap_between_interleaved_stages_only(ranks, flags):
    cfg = config(flags, ranks)
    assert not cfg.transformer.overlap_p2p_comm and cfg.transformer.batch_p2p_comm
    assert [line for line in cfg.notices if line.startswith("--overlap-p2p-comm is off")]


@pytest.mark.parametrize(
    "flags, word",
    [
        ("--initial-loss-scale 1024", "--fp16"),
        ("--optimizer sgd --adam-beta1 0.8", "--optimizer sgd"),
        ("--sgd-momentum 0.8", "--optimizer adam"),
    ],
)
def test_no_effect_is_said(flags, word):
    notices = config(flags).notices
    assert [line for line in notices if "has no effect" in line and word in line], notices


@pytest.mark.parametrize("layout", ["--tensor-model-parallel-size 2", "--context-parallel-size 2"])
def test_the_variable_to_export(monkeypatch, layout):
    """Case 55: set from Python it would come too late."""
    monkeypatch.setattr(availability, "on_gpu", lambda cfg: True)
    monkeypatch.setattr(availability, "missing_for", lambda field, cfg: "nothing, but for the test")
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in " ".join(config(layout, 2).notices)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    assert config(layout, 2).notices == []


def test_the_launcher_says_how_many_ranks_there_are_not_the_host(monkeypatch):
    """Case 55: one process on a host of two GPUs is a run of one rank."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("WORLD_SIZE", "1")
    flags = [flag for flag in MINIMAL if flag not in ("--global-batch-size", "8")]
    assert parse_args([*flags, "--micro-batch-size", "3"]).training.global_batch_size == 3


@pytest.fixture
def broken_transformer_engine(tmp_path, monkeypatch):
    """A package whose binary was linked against another torch."""
    package = tmp_path / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text(
        "raise ImportError('transformer_engine_torch.so: undefined symbol: _ZN3c105ErrorC2E')\n"
    )
    metadata = tmp_path / "transformer_engine-2.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: transformer_engine\nVersion: 2.1.0\n"
        "Requires-Dist: numpy>=1.2\nRequires-Dist: torch==2.6.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    availability.breakage.cache_clear()
    yield
    sys.modules.pop("transformer_engine", None)
    availability.breakage.cache_clear()


def test_a_broken_binary_is_reported_with_its_torch(broken_transformer_engine, monkeypatch):
    """Case 56."""
    for word in ("undefined symbol", "torch 2.6.0", f"torch {torch.__version__}"):
        assert word in (availability.breakage("transformer_engine") or "")
    with pytest.raises(ConfigError, match=r"undefined symbol.* built for torch 2\.6\.0"):
        config("--transformer-impl transformer_engine")
    monkeypatch.setattr(availability, "on_gpu", lambda cfg: True)
    [notice] = [line for line in config("").notices if "torch 2.6.0" in line]
    assert notice.startswith("layers are torch-native")
