"""The stand-in for Transformer Engine's FusedAdam, against Adam written out."""

import pytest
import torch

from fixedcode_megatron.training.fused_adam import FusedAdam


def written_out(param, grads, *, lr, betas, eps, weight_decay, decoupled):
    """Adam as in Kingma & Ba (2015), AdamW as in Loshchilov & Hutter (2019), in FP64."""
    param = param.double()
    m, v = torch.zeros_like(param), torch.zeros_like(param)
    for t, grad in enumerate(grads, start=1):
        grad = grad.double()
        if decoupled:
            param = param * (1 - lr * weight_decay)
        else:
            grad = grad + weight_decay * param
        m = betas[0] * m + (1 - betas[0]) * grad
        v = betas[1] * v + (1 - betas[1]) * grad**2
        m_hat, v_hat = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
        param = param - lr * m_hat / (v_hat.sqrt() + eps)
    return param


@pytest.mark.parametrize("decoupled", [True, False])
def test_ten_steps(decoupled):
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(37, 5, generator=generator)
    grads = [torch.randn(37, 5, generator=generator) for _ in range(10)]
    options = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    param = torch.nn.Parameter(start.clone())
    optimizer = FusedAdam([param], adam_w_mode=decoupled, **options)
    for grad in grads:
        param.grad = grad.clone()
        optimizer.step()
    expected = written_out(start, grads, decoupled=decoupled, **options)
    torch.testing.assert_close(param.detach().double(), expected, rtol=0, atol=2e-6)


def test_state_layout_is_transformer_engines():
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = FusedAdam([param])
    param.grad = torch.ones(3)
    optimizer.step()
    optimizer.step()
    assert optimizer.param_groups[0]["step"] == 2
    assert set(optimizer.state[param]) == {"exp_avg", "exp_avg_sq"}


def test_a_parameter_without_gradient_stays():
    param, other = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = FusedAdam([param, other])
    param.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(other.detach(), torch.ones(3))
    assert not torch.equal(param.detach(), torch.ones(3))
