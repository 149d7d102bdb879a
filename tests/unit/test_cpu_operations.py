"""The element-wise operations for CPUs against autograd on the formulas they replace, in FP64."""

from __future__ import annotations

import pytest
import torch

from fixedcode_megatron import cpu_operations


@pytest.fixture
def normal():
    generator = torch.Generator().manual_seed(2)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_gradient_of_swiglu(normal):
    x, grad = normal(5, 2, 14).requires_grad_(), normal(5, 2, 7)
    gate, linear = x[..., :7], x[..., 7:]
    (gate * torch.sigmoid(gate) * linear).backward(grad)
    found = cpu_operations.swiglu_backward(grad, x.detach())
    torch.testing.assert_close(found, x.grad, atol=1e-14, rtol=0)


def test_rotation_turns_pairs_by_their_angle(normal):
    """The pair (i, i + d/2) is a complex number; its rotation is a product with e^(i angle)."""
    x, angles = normal(3, 2, 4, 8), normal(3, 1, 1, 4)
    freqs = torch.cat([angles, angles], dim=-1)
    rotary = cpu_operations._rotary_or(None)
    x.requires_grad_()
    found = rotary(x, freqs)
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.exp(1j * angles)
    expected = torch.cat([turned.real, turned.imag], dim=-1)
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)
    grad = normal(3, 2, 4, 8)
    [found_grad] = torch.autograd.grad(found, x, grad)
    [expected_grad] = torch.autograd.grad(expected, x, grad)
    torch.testing.assert_close(found_grad, expected_grad, atol=1e-14, rtol=0)


def test_angles_that_change_in_place_are_read_again(normal):
    x, freqs = normal(3, 1, 2, 4), normal(3, 1, 1, 4)
    rotary = cpu_operations._rotary_or(None)
    before = rotary(x, freqs)
    freqs.zero_()
    assert not torch.equal(before, x)
    assert torch.equal(rotary(x, freqs), x)


@pytest.mark.parametrize(
    "case", ["partial", "interleaved", "latent attention"], ids=lambda case: case.replace(" ", "-")
)
def test_other_rotations_are_megatron_cores(normal, case):
    calls = []
    rotary = cpu_operations._rotary_or(lambda *args, **options: calls.append((args, options)))
    x, freqs = normal(3, 1, 2, 8), normal(3, 1, 1, 4 if case == "partial" else 8)
    options = {"interleaved": {"rotary_interleaved": True}, "partial": {}}.get(
        case, {"multi_latent_attention": True}
    )
    rotary(x, freqs, mscale=2.0, **options)
    [(args, found)] = calls
    assert args == (x, freqs)
    assert found == options | {"mscale": 2.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_gradient_adds_to_the_main_gradient(dtype):
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=dtype)
    grad = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, -1.0]], dtype=dtype)
    main_grad = torch.full((3, 2), 10.0)
    cpu_operations.accumulate_weight_gradient(x, grad, main_grad)
    assert main_grad.tolist() == [[11.0, 12.0], [13.0, 14.0], [9.0, 10.0]]
