"""Generation with cached keys and values, against whole contexts without a cache."""

import dataclasses

import pytest
import torch

from fixedcode_megatron.codes import TokenCode
from fixedcode_megatron.interop.cached_model import CachedModel
from fixedcode_megatron.interop.generation import continue_texts, generate
from fixedcode_megatron.interop.modeling_fixedcode import FixedCodeConfig, FixedCodeForCausalLM

V, PADDED = 50, 64
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5], [35]]


@pytest.fixture(scope="module")
def model():
    """Random weights; the head has rows beyond V, whose logits are the largest."""
    config = FixedCodeConfig(
        vocab_size=PADDED,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        partial_rotary_factor=0.67,
        token_code=dataclasses.asdict(TokenCode.gf2(PADDED)),
    )
    torch.manual_seed(0)
    model = FixedCodeForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape) * 0.5
        model.lm_head.weight[V:] *= 100
    return model


def uncached(model, prompts, **options):
    return generate(
        lambda ids: model(ids).logits, prompts, vocab_size=V, max_new_tokens=30, **options
    )


@pytest.mark.parametrize(
    "options",
    [
        dict(temperature=0),
        dict(temperature=0, max_context=12),
        dict(seed=4, top_k=20),
        dict(seed=5, top_p=0.9, temperature=1.3),
    ],
)
def test_cached_generation_is_uncached_generation(model, options):
    """Prompts of unequal length, one of which ends early; contexts that outgrow the model."""
    free = uncached(model, PROMPTS, **options)
    assert [len(tokens) for tokens in free] == [30, 30, 30]
    eod = free[1][5]
    expected = uncached(model, PROMPTS, eod=eod, **options)
    assert len(expected[1]) < max(map(len, expected))
    told = []
    found = continue_texts(
        CachedModel(model, V),
        PROMPTS,
        vocab_size=V,
        max_new_tokens=30,
        eod=eod,
        on_token=lambda row, token: told.append((row, token)),
        **options,
    )
    assert found == expected
    assert max(token for tokens in found for token in tokens) < V
    assert [[t for r, t in told if r == row] for row in range(3)] == expected


def test_each_token_goes_through_the_model_once(model):
    sizes = []
    hook = model.layers[0].register_forward_pre_hook(
        lambda _, inputs: sizes.append(tuple(inputs[0].shape[:2]))
    )
    try:
        continue_texts(CachedModel(model, V), PROMPTS, vocab_size=V, max_new_tokens=5)
    finally:
        hook.remove()
    assert sizes == [(3, 6), (3, 1), (3, 1), (3, 1), (3, 1)]
