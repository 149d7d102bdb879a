"""Attention in blocks against the formula written out, in FP64."""

import pytest
import torch

from fixedcode_megatron.model import cpu_attention
from fixedcode_megatron.model.cpu_attention import applies, causal_attention, kept_bytes


def written_out(query, key, value, scale):
    """Every position's weights over all others, with zeros for the later ones."""
    share = query.shape[2] // key.shape[2]
    key, value = (x.repeat_interleave(share, dim=2) for x in (key, value))
    weights = torch.einsum("qbhd,kbhd->bhqk", query, key).mul(scale).exp().tril()
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("bhqk,kbhd->qbhd", weights, value)


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("length", [1, 7, 128, 129, 300])
def test_values_and_gradients(length, groups):
    generator = torch.Generator().manual_seed(length)

    def normal(heads):
        # Not contiguous: heads lie between the positions, as in a QKV product's output.
        x = torch.randn(length, 2, 6, heads, generator=generator, dtype=torch.float64)
        return x.transpose(2, 3).detach().requires_grad_()

    tensors = normal(4), normal(groups), normal(groups)
    found, expected = causal_attention(*tensors, 0.3), written_out(*tensors, 0.3)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    grad = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    wanted = torch.autograd.grad(expected, tensors, grad)
    for one, other in zip(torch.autograd.grad(found, tensors, grad), wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_what_is_kept():
    # Two blocks of 128 queries see 128 and 256 keys, the last 44 all 300.
    assert kept_bytes(300, 6) == 4 * 6 * (128 * 128 + 128 * 256 + 44 * 300)
    x = torch.randn(300, 2, 3, 4, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        causal_attention(x, x, x, 1.0)
    probabilities = [t for t in kept if t.shape[-1] in (128, 256, 300)]
    assert sum(t.numel() * t.element_size() for t in probabilities) == kept_bytes(300, 6)


def test_where_it_is_not_used():
    assert applies(torch.empty(512, 4, 4, 64))
    for other in (
        torch.empty(256, 4, 4, 64),  # torch's kernel is as fast
        torch.empty(8192, 1, 4, 64, device="meta"),
        torch.empty(512, 4, 4, 64, dtype=torch.bfloat16),
        torch.empty(4096, 1, 4, 64),  # would keep 138 MiB
    ):
        assert not applies(other)


def test_layers_use_it(monkeypatch):
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.transformer_config import TransformerConfig

    from fixedcode_megatron.model.layers import CoreAttention

    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=2, attention_dropout=0.0,
        hidden_dropout=0.0,
    )  # fmt: skip
    layer = CoreAttention(config, 1, AttnMaskType.causal, "self")
    x = torch.randn(300, 1, 2, 4)
    calls = []

    def counted(*args):
        calls.append(args)
        return causal_attention(*args)

    monkeypatch.setattr(cpu_attention, "causal_attention", counted)
    found = layer(x, x, x, None)
    assert len(calls) == 1
    later = torch.ones(1, 1, 300, 300, dtype=torch.bool).triu(1)
    torch.testing.assert_close(found, layer(x, x, x, later), atol=1e-5, rtol=0)
    assert len(calls) == 1  # a mask of its own is torch's kernel's
