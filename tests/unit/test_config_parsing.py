"""Flags, presets and defaults: who wins, how values read, and what is said about mistakes."""

import io
import pickle
from copy import deepcopy

import pytest

from fixedcode_megatron.config import ConfigError, parse_args, report
from fixedcode_megatron.config.cli import read
from fixedcode_megatron.config.flags import build_parser
from fixedcode_megatron.config.options import negation
from fixedcode_megatron.config.tree import OPTIONS
from fixedcode_megatron.errors import UserError

MINIMAL = [
    "--num-layers=2",
    "--hidden-size=64",
    "--num-attention-heads=4",
    "--train-iters=5",
    "--lr=1e-3",
    "--data-path=some/prefix",
    "--vocab-size=256",
]


def problems_of(*flags: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_args([*MINIMAL, *flags])
    return caught.value.problems


def test_flag_beats_preset_beats_default(tmp_path):
    preset = tmp_path / "p.yaml"
    preset.write_text("hidden_size: 128\nlr: 3e-4\nclip_grad: 5e-1\n")
    flags = [flag for flag in MINIMAL if not flag.startswith("--hidden-size")]
    cfg = parse_args([*flags, "--config", str(preset)])
    assert cfg.transformer.hidden_size == 128  # preset
    assert cfg.optimizer.lr == 1e-3  # flag
    assert cfg.optimizer.clip_grad == 0.5  # preset, although YAML takes 5e-1 for a string
    assert cfg.model.seq_length == 1024  # default
    assert cfg.given["hidden_size"] == "preset" and cfg.given["lr"] == "flag"
    assert "seq_length" not in cfg.given


def test_one_name_feeds_every_section():
    cfg = parse_args([*MINIMAL, "--bf16", "--use-distributed-optimizer"])
    assert cfg.transformer.bf16 and cfg.optimizer.bf16
    assert cfg.ddp.use_distributed_optimizer and cfg.optimizer.use_distributed_optimizer


def test_a_tree_can_be_copied_and_sent_to_other_processes():
    cfg = parse_args([*MINIMAL, "--bf16"])
    for copy in (pickle.loads(pickle.dumps(cfg)), deepcopy(cfg)):
        assert copy == cfg and copy.transformer is not cfg.transformer


def test_all_problems_at_once():
    found = problems_of(
        "--hiden-size", "8", "--micro-batch-size", "two", "--mtp-num-layers", "1", "--lr"
    )
    assert len(found) == 4
    assert found[0] == "--hiden-size: no such flag; did you mean --hidden-size?"
    assert set(found[1:3]) == {
        "--micro-batch-size: must be a whole number, found 'two'",
        "--mtp-num-layers: multi-token prediction is not supported",
    }
    assert found[3] == "--lr: needs a value"


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["--code-shift", "0x1F"], "code_shift", 31),
        (["--code-offset", "-1e-3"], "code_offset", -0.001),
        (["--code-offset=-1"], "code_offset", -1.0),
        (["--train-samples", "1_000_000"], "train_samples", 1_000_000),
        (["--train-iters", "5", "--train-iters", "none"], "train_iters", None),
        (["--swiglu", "--no-swiglu"], "swiglu", False),
        (["--no-save-rng"], "no_save_rng", True),
        (["--no-save-rng", "--save-rng"], "no_save_rng", False),
        (["--position-embedding-type", "none"], "position_embedding_type", "none"),
        (["--rampup-batch-size", "2", "2", "10"], "rampup_batch_size", [2, 2, 10]),
        (["--window-size", "128", "0"], "window_size", (128, 0)),
        (["--cp-comm-type", "p2p"], "cp_comm_type", "p2p"),
        (["--cp-comm-type", "p2p", "a2a"], "cp_comm_type", ["p2p", "a2a"]),
        (["--attention-backend", "flash"], "attention_backend", "flash"),
        (["--data-path", "0.5", "a", "0.5", "b"], "data_path", ["0.5", "a", "0.5", "b"]),
    ],
)
def test_values(flags, name, value):
    cfg, problems = read(flags)
    assert not problems
    assert cfg.get(name) == value


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--swiglu", "yes"], "--swiglu: is on or off"),
        (["--no-swiglu", "1"], "--no-swiglu: takes no value, found 1"),
        (["--lr", "1", "2"], "--lr: takes one value, found 2: 1 2"),
        (["--input-interface", "gf3"], "must be one of learned, binary, gf2, random, lowdim"),
        (["--data-path"], "--data-path: needs a value"),
        (["--config"], "--config: needs one file"),
        (["--config", "no-such-preset"], "--config no-such-preset: no such file; presets here: "),
        (["stray", "--swiglu"], "stray: belongs to no flag"),
        (
            ["--moe-router-fusion"],
            "--moe-router-fusion: this setting of mixtures of experts",
        ),
        (["--hidden-siz", "8"], "--hidden-siz: no such flag; did you mean --hidden-size?"),
        (["--position-embedding-type", "learned_absolute"], "use rope or none"),
        (["--dataloader-type", "cyclic"], "use single"),
        (["--disable-bias-linear", "true"], "--disable-bias-linear: takes no value"),
    ],
)
def test_mistakes(flags, part):
    _, problems = read(flags)
    assert len(problems) == 1
    assert part in problems[0]


def test_megatron_names_for_other_options():
    cfg, problems = read(
        [
            *("--disable-bias-linear", "--norm-epsilon", "1e-6", "--apply-layernorm-1p"),
            *("--fp8-format", "hybrid", "--fp8-param-gather", "--no-rope-fusion"),
            *("--no-bias-swiglu-fusion", "--recompute-activations", "--use-flash-attn"),
            *("--ddp-bucket-size", "1000", "--decoder-first-pipeline-num-layers", "3"),
            *("--no-position-embedding", "--no-check-for-nan-in-loss-and-grad"),
        ]
    )
    t = cfg.transformer
    assert not problems
    assert t.add_bias_linear is False and t.layernorm_epsilon == 1e-6
    assert t.layernorm_zero_centered_gamma is True
    assert t.fp8 == "hybrid" and t.fp8_param is True and cfg.ddp.fp8_param_gather is True
    assert t.apply_rope_fusion is False and t.bias_activation_fusion is False
    assert t.recompute_granularity == "selective" and t.attention_backend == "flash"
    assert cfg.ddp.bucket_size == 1000 and t.num_layers_in_first_pipeline_stage == 3
    assert cfg.model.position_embedding_type == "none"
    assert cfg.training.check_for_nan_in_loss_and_grad is False


def test_ignored_flags_leave_a_notice():
    cfg, problems = read(
        ["--num-workers", "2", "--no-log-loss-scale-to-tensorboard", "--manual-gc"]
    )
    assert not problems
    assert [notice.split()[0] for notice in cfg.notices] == [
        "--num-workers",
        "--no-log-loss-scale-to-tensorboard",
        "--manual-gc",
    ]


def test_no_flag_means_two_things():
    flags = [o.flag for o in OPTIONS.values()]
    flags += [negation(o.name) for o in OPTIONS.values() if o.is_switch]
    assert len(flags) == len(set(flags))


def test_help_explains_every_flag(capsys):
    parser = build_parser(with_help=True)
    shown = {a.dest: a.help for a in parser._actions if a.help != "==SUPPRESS=="}
    assert all(shown[name].split(" [default")[0].strip() for name in OPTIONS)
    with pytest.raises(SystemExit) as stopped:
        parse_args(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "--num-attention-heads INT" in text and "--no-bf16" in text


def test_report_prints_a_line_each_and_no_traceback():
    out = io.StringIO()
    assert report(ConfigError(["--a: x", "--b: y"]), out) == 2
    assert report(UserError("--c: z"), out) == 2
    assert out.getvalue() == "error: --a: x\nerror: --b: y\nerror: --c: z\n"
