"""Settings of megatron-core's that nothing here acts on: refused or noticed, never silent.

Refused is what would change the model or what the run guarantees; noticed is what would change
memory or speed alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fixedcode_megatron.config import availability
from fixedcode_megatron.config.options import flag_of
from fixedcode_megatron.config.tree import OPTIONS

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig

_GROUPS = (
    "megatron-core mixes up the groups of parameters when such a run is resumed; use --lr and "
    "--min-lr for all"
)

_REFUSED: dict[str, str] = {
    "apply_residual_connection_post_layernorm": (
        "megatron-core's layers take the residual before the norm, always; leave it out"
    ),
    "decoupled_lr": _GROUPS,
    "decoupled_min_lr": _GROUPS,
    "optimizer_cuda_graph": "the update waits for the gradient norm on the host; leave it out",
    "overlap_param_gather_with_optimizer_step": "is not supported; use --overlap-param-gather",
    "use_layer_wise_distributed_optimizer": "is not supported: Muon's state is whole on every rank",
}

_NEEDS_TRANSFORMER_ENGINE = (
    "batch_invariant_mode",
    "log_max_attention_logit",
    "qk_clip",
    "softmax_type",
)
"""Torch-native layers would compute the same with and without these."""

_WITHOUT_EFFECT: dict[str, str] = {
    "clone_scatter_output_in_embedding": "the input is made in place",
    "fp32_residual_connection": (
        "megatron-core rounds the residual to the layers' precision after every layer, so that "
        "only the first layer's input is FP32"
    ),
    "max_seqlen_per_dp_cp_rank": "sequences are all of --seq-length",
    "pipeline_model_parallel_comm_backend": "stages talk over --distributed-backend",
}

_WITHOUT_EFFECT_ON_LOCAL = (
    "cp_comm_type",
    "disable_parameter_transpose_cache",
    "memory_efficient_layer_norm",
    "symmetric_ar_type",
    "window_attn_skip_freq",
)

_FP16 = ("initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis")
"""Settings of the loss scale that adapts."""


def check(cfg: RunConfig) -> list[str]:
    """Return what is refused; the rest is added to the notices."""
    local = availability.transformer_impl(cfg) == "local"
    problems = [f"{flag_of(name)}: {why}" for name, why in _REFUSED.items() if _asked(cfg, name)]
    if local:
        problems += [
            f"{flag_of(name)}: torch-native layers do not have it; use --transformer-impl "
            "transformer_engine or leave it out"
            for name in _NEEDS_TRANSFORMER_ENGINE
            if _asked(cfg, name)
        ]
    elif cfg.data.reset_attention_mask:
        problems.append(
            "--reset-attention-mask: Transformer Engine's causal attention ignores the mask; use "
            "--transformer-impl local or leave it out"
        )
    if not local and cfg.data.sft and cfg.data.sft_packing:
        problems.append(
            "--sft with Transformer Engine: its causal attention ignores the mask between packed "
            "conversations; add --no-sft-packing or use --transformer-impl local (not with FP8)"
        )
    if cfg.transformer.fp16 and cfg.ddp.check_for_nan_in_grad:
        problems.append(
            "--check-for-nan-in-grad with --fp16: such gradients are expected, the loss scale "
            "adapts to them; leave it out"
        )
    if cfg.ddp.num_distributed_optimizer_instances > 1 and not availability.importable("einops"):
        problems.append(
            "--num-distributed-optimizer-instances: megatron-core needs the package einops for it "
            "(pip install einops)"
        )
    problems += _precision(cfg)
    checkpoint = cfg.checkpoint
    if cfg.optimizer.optimizer == "sgd" and checkpoint.save and not checkpoint.no_save_optim:
        problems.append(
            "--optimizer sgd with --save: megatron-core cannot load its state again; add "
            "--no-save-optim (momentum then starts anew on a resume)"
        )
    for name, why in _WITHOUT_EFFECT.items():
        if _asked(cfg, name):
            cfg.notices.append(f"{flag_of(name)} has no effect: {why}")
    if local:
        cfg.notices += [
            f"{flag_of(name)} has no effect on torch-native layers"
            for name in _WITHOUT_EFFECT_ON_LOCAL
            if _asked(cfg, name)
        ]
    _notice_partial_effects(cfg)
    return problems


def _precision(cfg: RunConfig) -> list[str]:
    """What megatron-core rounds, or averages, otherwise than the run asks for."""
    t, problems = cfg.transformer, []
    plain_loss = not cfg.model.fused_linear_cross_entropy
    native = t.cross_entropy_loss_fusion and t.cross_entropy_fusion_impl == "native"
    if plain_loss and native and not t.bf16:
        problems.append(
            "--cross-entropy-loss-fusion: megatron-core's fused loss rounds its gradient to BF16, "
            "which this run does not otherwise; use --bf16 or leave it out"
        )
    if cfg.ddp.average_in_collective and t.calculate_per_token_loss:
        problems.append(
            "--ddp-average-in-collective with --calculate-per-token-loss: gradients are then "
            "divided by tokens, not by ranks; drop one"
        )
    return problems


def _notice_partial_effects(cfg: RunConfig) -> None:
    """Notice settings whose effect depends on others."""
    used = {"muon": ("muon_", "adam_")}.get(cfg.optimizer.optimizer, f"{cfg.optimizer.optimizer}_")
    unused = [
        name
        for name in cfg.given
        if name.startswith(("adam_", "sgd_", "muon_"))
        and not name.startswith(used)
        and cfg.is_chosen(name)
    ]
    cfg.notices += [
        f"{flag_of(name)} has no effect with --optimizer {cfg.optimizer.optimizer}"
        for name in unused
    ]
    if not cfg.transformer.fp16:
        cfg.notices += [
            f"{flag_of(name)} has no effect without --fp16" for name in _FP16 if _asked(cfg, name)
        ]
    if cfg.data.reset_position_ids:
        cfg.notices.append(
            "--reset-position-ids has no effect: rotary positions are those in the sample (only "
            "differences count, so that within a document nothing changes)"
        )
    modules = cfg.transformer.recompute_modules or []
    if cfg.transformer.recompute_granularity == "selective" and "layernorm" in modules:
        cfg.notices.append(
            "--recompute-modules layernorm has no effect: the norms are part of the linear layers"
        )


def _asked(cfg: RunConfig, name: str) -> bool:
    """Whether a setting was given, and not given as off."""
    if name not in OPTIONS or name not in cfg.given:
        return False
    value = cfg.get(name)
    off = value is None or value is False or value in ("none", "vanilla")  # 0 is a value
    return not off and bool(value != OPTIONS[name].default)
