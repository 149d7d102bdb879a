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


def test_rms_norm_and_its_gradients(normal):
    x, weight = normal(3, 2, 6).requires_grad_(), normal(6).requires_grad_()
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    grad = normal(3, 2, 6)
    wanted = torch.autograd.grad(expected, (x, weight), grad)
    found = cpu_operations._RMSNorm.apply(x, weight, 1e-3)
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)
    found = torch.autograd.grad(found, (x, weight), grad)
    torch.testing.assert_close(found, wanted, atol=1e-14, rtol=0)


def test_other_norms_are_torchs(normal):
    norm = cpu_operations._rms_norm_or(lambda *args: args)
    rows, table = normal(3, 2, 6), normal(2, 6)
    for args in ((rows, (6,), None, 0.1), (rows, (2, 6), table, 0.1), (rows, (6,), table[0], None)):
        assert norm(*args) == args
    found = norm(rows.float(), (6,), table[0].float(), None)
    expected = torch.nn.functional.rms_norm(rows, (6,), table[0], torch.finfo(torch.float32).eps)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_linear_layer_and_its_gradients(normal, dtype, tolerance):
    x, weight, bias = normal(4, 2, 6), normal(5, 6), normal(5)
    grad = normal(4, 2, 5)
    given = [tensor.to(dtype).requires_grad_() for tensor in (x, weight, bias)]
    found = cpu_operations._Linear.apply(*given, False)
    expected = torch.einsum("sbi,oi->sbo", x, weight) + bias
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=0)
    assert not found._is_view()  # megatron-core's cross entropy overwrites the logits
    wanted = (
        torch.einsum("sbo,oi->sbi", grad, weight),
        torch.einsum("sbo,sbi->oi", grad, x),
        grad.sum((0, 1)),
    )
    for one, other in zip(torch.autograd.grad(found, given, grad.to(dtype)), wanted, strict=True):
        torch.testing.assert_close(one.double(), other, atol=tolerance, rtol=0)


@pytest.mark.parametrize("zero", [True, False])
def test_a_fused_weight_gradient_goes_to_the_main_gradient_alone(zero):
    weight = torch.nn.Parameter(torch.tensor([[1.0, 2.0]]))
    weight.main_grad = torch.tensor([[10.0, 20.0]])
    weight.grad_added_to_main_grad, weight.zero_out_wgrad = False, zero
    x = torch.tensor([[3.0, 5.0], [1.0, 1.0]], requires_grad=True)
    cpu_operations._Linear.apply(x, weight, None, True).sum().backward()
    assert weight.main_grad.tolist() == [[14.0, 26.0]]
    assert weight.grad_added_to_main_grad is True
    assert weight.grad.shape == (1, 2) and (not zero or weight.grad.tolist() == [[0.0, 0.0]])
    assert x.grad.tolist() == [[1.0, 2.0], [1.0, 2.0]]


@pytest.mark.parametrize("which", range(3))
def test_layers_that_communicate_are_megatron_cores(which):
    class Original:
        apply = staticmethod(lambda *args: args)

    options = [False, False, None]
    options[which] = [] if which == 2 else True
    arguments = (torch.ones(1, 2), torch.ones(3, 2), None, True, *options, 0, "group")
    assert cpu_operations._LinearOr(Original).apply(*arguments) == arguments
    arguments = (torch.ones(1, 2), torch.ones(3, 2), None, False, False, False, None, 0, "group")
    assert cpu_operations._LinearOr(Original).apply(*arguments).tolist() == [[2.0, 2.0, 2.0]]
