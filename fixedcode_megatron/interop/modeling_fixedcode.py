"""A causal language model whose input is a fixed token code; needs torch and transformers only.

This file travels with exported models (trust_remote_code). An input vector is computed from the
token's id: bit j of the code is the parity of (row_masks[j] AND id), without row_masks bit j of the
id, XORed with bit j of `shift`; element i of the vector is offset + scale * bit of column i mod K
(or i // (width / K)). No embedding table exists.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

CACHE_NAME = (
    "cache"
    if "cache" in inspect.signature(CausalLMOutputWithPast).parameters
    else "past_key_values"
)
_MASK64 = (1 << 64) - 1


class FixedCodeConfig(PretrainedConfig):
    """Shape of the model, and `token_code`, a dictionary (None for a learned table)."""

    model_type = "fixedcode"

    def __init__(
        self,
        vocab_size: int = 2,
        hidden_size: int = 8,
        intermediate_size: int = 8,
        num_hidden_layers: int = 1,
        num_attention_heads: int = 1,
        num_key_value_heads: int = 1,
        head_dim: int = 8,
        max_position_embeddings: int = 1024,
        hidden_act: str = "silu",
        normalization: str = "RMSNorm",
        norm_eps: float = 1e-5,
        zero_centered_norm: bool = False,
        linear_bias: bool = False,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        rope_theta: float = 10000.0,
        partial_rotary_factor: float = 1.0,
        input_interface: str = "binary",
        token_code: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.intermediate_size, self.num_hidden_layers = intermediate_size, num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads, self.head_dim = num_key_value_heads, head_dim
        self.max_position_embeddings, self.hidden_act = max_position_embeddings, hidden_act
        self.normalization, self.norm_eps = normalization, norm_eps
        self.zero_centered_norm, self.qk_norm = zero_centered_norm, qk_norm
        self.linear_bias, self.qkv_bias = linear_bias, qkv_bias
        self.rope_theta, self.partial_rotary_factor = rope_theta, partial_rotary_factor
        self.input_interface, self.token_code = input_interface, token_code
        kwargs.setdefault("tie_word_embeddings", False)
        super().__init__(**kwargs)


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last dimension."""

    def __init__(self, config: FixedCodeConfig, size: int) -> None:
        super().__init__()
        self.eps, self.shift = config.norm_eps, float(config.zero_centered_norm)
        self.weight = nn.Parameter(torch.ones(size))
        with_bias = config.normalization == "LayerNorm"
        self.bias = nn.Parameter(torch.zeros(size)) if with_bias else None

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + self.shift if self.shift else self.weight
        if self.bias is None:
            return F.rms_norm(x, (x.shape[-1],), weight, self.eps)
        return F.layer_norm(x, (x.shape[-1],), weight, self.bias, self.eps)


class CodeInput(nn.Module):
    """Ids [b, s] to vectors [b, s, width]; owns a parameter for learned inputs alone."""

    def __init__(self, config: FixedCodeConfig) -> None:
        super().__init__()
        self.width, self.kind, self.code = config.hidden_size, config.input_interface, {}
        columns = config.hidden_size
        if self.kind != "learned":
            assert config.token_code is not None
            self.code = dict(config.token_code)
            columns = self.code["num_bits"]
        if self.kind in ("learned", "lowdim"):
            self.weight = nn.Parameter(torch.zeros(config.vocab_size, columns))

    def forward(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        if self.kind == "learned":
            return F.embedding(ids, self.weight)
        if self.kind == "lowdim":
            values = F.embedding(ids, self.weight)
        elif self.kind == "random":
            values = self._random(ids).mul_(self.code["scale"]).add_(self.code["offset"]).to(dtype)
        else:
            zero = torch.tensor(self.code["offset"], dtype=torch.float32, device=ids.device)
            pair = torch.stack([zero, zero + torch.tensor(self.code["scale"], dtype=torch.float32)])
            values = pair.to(dtype)[self._bits(ids)]
        elements = torch.arange(self.width, device=ids.device)
        count = self.code["num_bits"]
        tile = self.code["lift"] == "tile"
        return values[..., elements % count if tile else elements // (self.width // count)]

    def _bits(self, ids: Tensor) -> Tensor:
        """Code bits [..., K] of ids [...]."""
        places = torch.arange(self.code["num_bits"], dtype=torch.int64, device=ids.device)
        ids = ids.to(torch.int64).unsqueeze(-1)
        if self.code["row_masks"] is None:
            bits = ids >> places
        else:
            bits = ids & torch.tensor(self.code["row_masks"], dtype=torch.int64, device=ids.device)
            for half in (16, 8, 4, 2, 1):  # the parity moves to the lowest place
                bits = bits ^ (bits >> half)
        return (bits ^ (self.code["shift"] >> places)) & 1

    def _random(self, ids: Tensor) -> Tensor:
        """Numbers in [-1, 1) by SplitMix64 from id and column, float32 [..., K]."""
        step, mixers = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
        start = _mixed((self.code["seed"] + step) & _MASK64, mixers)
        columns = torch.arange(self.code["num_bits"], dtype=torch.int64, device=ids.device)
        x = ((ids.to(torch.int64) & 0xFFFFFFFF) << 16).unsqueeze(-1) + columns + 1
        x = x * _signed(step) + _signed(start)
        for shift, mixer in zip((30, 27), mixers, strict=True):
            x = (x ^ _logical_shift(x, shift)) * _signed(mixer)
        x = x ^ _logical_shift(x, 31)
        return (_logical_shift(x, 40) - (1 << 23)).to(torch.float32) * 2.0**-23


def _mixed(value: int, mixers: tuple[int, int]) -> int:
    value = ((value ^ (value >> 30)) * mixers[0]) & _MASK64
    value = ((value ^ (value >> 27)) * mixers[1]) & _MASK64
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _logical_shift(value: Tensor, count: int) -> Tensor:
    return (value >> count) & ((1 << (64 - count)) - 1)


class Attention(nn.Module):
    """Grouped-query attention; rows of `qkv` are, group by group, its queries, key and value."""

    def __init__(self, config: FixedCodeConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.size = layer, config.head_dim
        self.groups = config.num_key_value_heads
        self.per_group = config.num_attention_heads // self.groups
        rows = self.groups * (self.per_group + 2) * self.size
        self.norm = Norm(config, config.hidden_size)
        self.qkv = nn.Linear(config.hidden_size, rows, bias=config.qkv_bias)
        out = config.num_attention_heads * self.size
        self.proj = nn.Linear(out, config.hidden_size, bias=config.linear_bias)
        self.q_norm = Norm(config, self.size) if config.qk_norm else nn.Identity()
        self.k_norm = Norm(config, self.size) if config.qk_norm else nn.Identity()

    def forward(self, x: Tensor, rotation: Any, mask: Tensor | None, cache: Any) -> Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, self.groups, -1, self.size)
        q, k, v = parts.split([self.per_group, 1, 1], dim=3)
        q, k, v = (t.flatten(2, 3).transpose(1, 2) for t in (q, k, v))  # [b, heads, s, d]
        q, k = _rotated(self.q_norm(q), rotation), _rotated(self.k_norm(k), rotation)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        many = self.per_group > 1
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None and length > 1, enable_gqa=many
        )
        return self.proj(y.transpose(1, 2).flatten(2))


def _rotated(x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
    """Rotary positions on the first elements of each head, halves apart."""
    if rotation is None:
        return x
    cos, sin = rotation
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    turned = turned * cos + turned.roll(cos.shape[-1] // 2, dims=-1) * sin
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


class MLP(nn.Module):
    """Two linear layers with an activation, gated for `silu`."""

    def __init__(self, config: FixedCodeConfig) -> None:
        super().__init__()
        self.act = config.hidden_act
        rows = config.intermediate_size * (2 if self.act == "silu" else 1)
        self.norm = Norm(config, config.hidden_size)
        self.fc1 = nn.Linear(config.hidden_size, rows, bias=config.linear_bias)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.linear_bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc1(self.norm(x))
        if self.act == "silu":
            gate, up = y.chunk(2, dim=-1)
            return self.fc2(F.silu(gate) * up)
        if self.act == "relu2":
            return self.fc2(F.relu(y).square())
        return self.fc2(F.gelu(y, approximate="none" if self.act == "gelu" else "tanh"))


class Layer(nn.Module):
    """Attention and MLP, each added to its input."""

    def __init__(self, config: FixedCodeConfig, layer: int) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(config, layer), MLP(config)

    def forward(self, x: Tensor, rotation: Any, mask: Tensor | None, cache: Any) -> Tensor:
        x = x + self.attention(x, rotation, mask, cache)
        return x + self.mlp(x)


class FixedCodeForCausalLM(PreTrainedModel, GenerationMixin):
    """The model; the logits have `vocab_size` entries."""

    config_class = FixedCodeConfig
    base_model_prefix = "model"
    _no_split_modules = ("Layer",)
    _supports_sdpa = True

    def __init__(self, config: FixedCodeConfig) -> None:
        super().__init__(config)
        self.input = CodeInput(config)
        self.layers = nn.ModuleList([Layer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = Norm(config, config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Weights are loaded, never drawn."""

    def get_input_embeddings(self) -> nn.Module:
        return self.input

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        if inputs_embeds is None:
            assert input_ids is not None, "give input_ids or inputs_embeds"
            inputs_embeds = self.input(input_ids, self.lm_head.weight.dtype)
        if use_cache and cache is None:
            cache = DynamicCache()
        x, seen = inputs_embeds, 0 if cache is None else cache.get_seq_length()
        if position_ids is None:
            position_ids = torch.arange(seen, seen + x.shape[1], device=x.device)[None]
        rotation = self._rotation(position_ids, x.dtype)
        mask = _allowed(attention_mask, x.shape[1], seen, x.device)
        for layer in self.layers:
            x = layer(x, rotation, mask, cache)
        logits = self.lm_head(self.norm(x[:, -logits_to_keep:] if logits_to_keep else x))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE_NAME: cache})

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Cosine, and sine with its sign, [b, 1, s, rotated elements] of each position."""
        size = int(self.config.head_dim * self.config.partial_rotary_factor)
        if not size:
            return None
        powers = torch.arange(0, size, 2, dtype=torch.float32, device=positions.device) / size
        frequencies = 1.0 / self.config.rope_theta**powers
        angles = positions[:, None, :, None].float() * frequencies
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def _allowed(mask: Tensor | None, length: int, seen: int, device: torch.device) -> Tensor | None:
    """Bool [b or 1, 1, length, seen + length], True where allowed; None: plainly causal."""
    if (mask is None or bool(mask.all())) and (seen == 0 or length == 1):
        return None
    total = seen + length
    causal = torch.arange(total, device=device) <= torch.arange(seen, total, device=device)[:, None]
    if mask is None:
        return causal[None, None]
    allowed = causal & mask[:, None, None, :total].bool()
    # A padded position sees itself, so that its row is a number.
    return allowed | torch.eye(total, dtype=torch.bool, device=device)[seen:]
