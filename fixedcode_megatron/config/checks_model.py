"""Checks of the model's shape and its input interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fixedcode_megatron.config.aliases import usual_flag
from fixedcode_megatron.config.options import flag_of
from fixedcode_megatron.config.sections import FIXED_INTERFACES
from fixedcode_megatron.config.token_code import token_code
from fixedcode_megatron.errors import UserError

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig

_AT_LEAST_ONE = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "num_layers_per_virtual_pipeline_stage",
    "seq_length",
    "max_position_embeddings",
    "vocab_size",
    "make_vocab_size_divisible_by",
    "num_query_groups",
    "ffn_hidden_size",
    "kv_channels",
    "micro_batch_size",
    "global_batch_size",
    "train_iters",
    "train_samples",
    "eval_interval",
    "save_interval",
    "keep_last_checkpoints",
    "log_interval",
    "exit_interval",
    "save_retain_interval",
    "num_moe_experts",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "moe_router_topk",
    "recompute_num_layers",
    "num_distributed_optimizer_instances",
)
_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads")


def divisors(number: int) -> str:
    """Return the divisors of a number as text for a message, the longest lists cut short."""
    found = [d for d in range(1, number + 1) if number % d == 0]
    return (
        ", ".join(map(str, found)) if len(found) <= 12 else f"{', '.join(map(str, found[:12]))} ..."
    )


def positive(cfg: RunConfig) -> list[str]:
    """Sizes and intervals below 1."""
    return [
        f"{usual_flag(name)} {value}: must be at least 1"
        for name in (*_AT_LEAST_ONE, *_REQUIRED)
        if (value := cfg.get(name)) is not None
        and value < 1
        and not (name in _REQUIRED and name not in cfg.given)
    ]


def missing(cfg: RunConfig) -> list[str]:
    """The model's size is nowhere given."""
    absent = [flag_of(name) for name in _REQUIRED if not cfg.get(name)]
    if not absent:
        return []
    return [f"{', '.join(absent)}: missing; give a number, or --config PRESET that does"]


def widths(cfg: RunConfig) -> list[str]:
    """Widths must split into heads and over tensor-parallel ranks."""
    t, problems = cfg.transformer, []
    heads, tp, groups = t.num_attention_heads, t.tensor_model_parallel_size, t.num_query_groups
    if "kv_channels" not in cfg.given and t.hidden_size % heads:
        problems.append(
            f"--hidden-size {t.hidden_size} with --num-attention-heads {heads}: {t.hidden_size} % "
            f"{heads} = {t.hidden_size % heads}; use a number of heads among "
            f"{divisors(t.hidden_size)}, or give --kv-channels"
        )
    if heads % tp:
        problems.append(
            f"--num-attention-heads {heads} over --tensor-model-parallel-size {tp}: {heads} % {tp} "
            f"= {heads % tp}; use a size among {divisors(heads)}"
        )
    if heads % groups:
        problems.append(
            f"--num-query-groups {groups}: {heads} heads % {groups} = {heads % groups}; use a "
            f"number among {divisors(heads)}"
        )
    elif groups != heads and groups % tp and tp % groups:
        problems.append(
            f"--num-query-groups {groups} over --tensor-model-parallel-size {tp}: one must divide "
            "the other"
        )
    if t.ffn_hidden_size % tp:
        problems.append(
            f"--ffn-hidden-size {t.ffn_hidden_size} over --tensor-model-parallel-size {tp}: "
            f"must be a multiple of {tp}"
        )
    rotated = int(t.kv_channels * cfg.model.rotary_percent)
    if cfg.model.position_embedding_type == "rope" and rotated % 2:
        problems.append(
            f"rotary positions turn pairs: {t.kv_channels} head channels * --rotary-percent "
            f"{cfg.model.rotary_percent} = {rotated} is odd; use an even number"
        )
    return problems


def interface(cfg: RunConfig) -> list[str]:
    """The input interface against the rest; the code itself once the vocabulary is known."""
    problems = []
    name = cfg.input.input_interface
    if name != "learned" and not cfg.model.untie_embeddings_and_output_weights:
        problems.append(
            f"--no-untie-embeddings-and-output-weights with --input-interface {name}: the head "
            "cannot share a V x width table that this interface does not have; leave the flag out, "
            "or use --input-interface learned"
        )
    if cfg.input.code_matrix and name != "gf2":
        problems.append(
            f"--code-matrix with --input-interface {name}: only gf2 uses a matrix; use "
            "--input-interface gf2"
        )
    without_effect = {
        "learned": ("bits", "scale", "offset", "seed", "shift", "lift", "allow_partial_tile"),
        "binary": ("seed",),
        "random": ("shift",),
        "lowdim": ("scale", "offset", "seed", "shift"),
    }
    for field in without_effect.get(name, ()):
        if cfg.is_chosen(f"code_{field}"):
            flag = flag_of(f"code_{field}")
            cfg.notices.append(f"{flag} has no effect with --input-interface {name}")
    if cfg.model.vocab_size is not None:
        problems += check_vocabulary(cfg, cfg.model.vocab_size)
    return problems


def check_vocabulary(cfg: RunConfig, vocab_size: int) -> list[str]:
    """Check the token code against the number of ids: call it once the tokenizer is known."""
    if vocab_size < 2 and cfg.input.input_interface in FIXED_INTERFACES:
        return [f"a vocabulary of {vocab_size} has nothing to encode: at least 2 ids are needed"]
    try:
        if code := token_code(cfg.input, vocab_size):
            code.check_width(cfg.transformer.hidden_size)
    except (UserError, OSError) as error:
        return [str(error)]
    return []
