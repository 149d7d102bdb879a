"""The op as torch sees it: checks, fake tensors, torch.compile, export, errors."""

import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fixedcode_kernels import CodeSpec, token_code_embedding

CODE = CodeSpec(vocab_size=12, num_bits=4, row_masks=(3, 2, 4, 9), shift=5, scale=2.0, offset=-1.0)
ARGUMENTS = (4, 8, torch.bfloat16, [3, 2, 4, 9], 5, 2.0, -1.0, False, 0, 3, 0)
IDS = torch.tensor([[5, 2, 11], [7, 0, 1]])


@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    torch._dynamo.reset()


def test_opcheck():
    results = torch.library.opcheck(torch.ops.fixedcode.token_code.default, (IDS, *ARGUMENTS))
    assert set(results.values()) == {"SUCCESS"}
    out = torch.empty(3, 2, 8, dtype=torch.bfloat16)
    results = torch.library.opcheck(
        torch.ops.fixedcode.token_code_out.default, (IDS, out, *ARGUMENTS)
    )
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_graph_breaks(dynamic):
    def step(ids):
        return token_code_embedding(ids, CODE, 8) * 2 + 1

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    assert torch.equal(compiled(IDS), step(IDS))
    longer = torch.arange(12).view(3, 4)
    assert torch.equal(compiled(longer), step(longer))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor(dynamic):
    def step(ids):
        return token_code_embedding(ids, CODE, 8) * 2 + 1

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic)
    for ids in (IDS, torch.arange(12).view(3, 4)):
        assert torch.equal(compiled(ids), step(ids))


def test_compiled_training_step_reaches_the_parameters():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 2)

        def forward(self, ids):
            return self.linear(token_code_embedding(ids, CODE, 8))

    model = Model()
    torch.compile(model, fullgraph=True, backend="aot_eager")(IDS).sum().backward()
    # d(sum)/dW[o, i] is the sum of input i over all tokens.
    expected = token_code_embedding(IDS, CODE, 8).sum((0, 1))
    assert torch.allclose(model.linear.weight.grad, expected.expand(2, 8))


def test_output_argument_also_compiles():
    def step(ids):
        out = torch.empty(ids.size(1), ids.size(0), 8)
        return token_code_embedding(ids, CODE, 8, out=out) + 1

    assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(IDS), step(IDS))


def test_export():
    class Model(torch.nn.Module):
        def forward(self, ids):
            return token_code_embedding(ids, CODE, 8, seq_start=1)

    exported = torch.export.export(Model(), (IDS,))
    assert any("fixedcode.token_code" in str(node.target) for node in exported.graph.nodes)
    assert torch.equal(exported.module()(IDS), Model()(IDS))


def test_fake_and_meta_tensors():
    with FakeTensorMode():
        out = token_code_embedding(torch.empty(4, 6, dtype=torch.int64), CODE, 8, seq_start=2)
    assert out.shape == (4, 4, 8) and out.dtype == torch.float32
    out = token_code_embedding(IDS.to("meta"), CODE, 8, dtype=torch.float16)
    assert out.device.type == "meta" and out.shape == (3, 2, 8) and out.dtype == torch.float16


def test_result_is_no_view_and_needs_no_gradient():
    out = token_code_embedding(IDS, CODE, 8)
    assert out._base is None and not out.requires_grad and out.is_contiguous()


@pytest.mark.parametrize("shape", [(0, 8), (4, 0)])
def test_empty_ids(shape):
    out = token_code_embedding(torch.empty(shape, dtype=torch.int64), CODE, 8, check_ids=True)
    assert out.shape == (shape[1], shape[0], 8)


def test_out_receives_the_values():
    out = torch.full((3, 2, 8), float("nan"))
    assert token_code_embedding(IDS, CODE, 8, out=out) is out
    assert torch.equal(out, token_code_embedding(IDS, CODE, 8))


def test_id_check_names_value_and_position():
    assert token_code_embedding(IDS, CODE, 8, check_ids=True).shape == (3, 2, 8)
    ids = IDS.clone()
    ids[1, 2] = 12
    with pytest.raises(ValueError, match=r"token id 12 at row 1, position 2 .*0 \.\. 11"):
        token_code_embedding(ids, CODE, 8, check_ids=True)
    with pytest.raises(ValueError, match="token id 12 at row 1, position 2"):
        token_code_embedding(ids, CODE, 8, check_ids=True, seq_start=1)
    token_code_embedding(ids, CODE, 8, check_ids=True, seq_length=2)  # not in this slice


def test_mistakes_name_the_argument():
    with pytest.raises(ValueError, match=r"ids has shape \(3,\)"):
        token_code_embedding(IDS[0], CODE, 8)
    with pytest.raises(ValueError, match=r"ids is torch\.float32"):
        token_code_embedding(IDS.float(), CODE, 8)
    with pytest.raises(ValueError, match="seq_start 1 and seq_length 3"):
        token_code_embedding(IDS, CODE, 8, seq_start=1, seq_length=3)
    with pytest.raises(ValueError, match=r"out is torch\.float32"):
        token_code_embedding(IDS, CODE, 8, dtype=torch.bfloat16, out=torch.empty(3, 2, 8))
    with pytest.raises(ValueError, match=r"dtype is torch\.int8"):
        token_code_embedding(IDS, CODE, 8, dtype=torch.int8)
    with pytest.raises(ValueError, match="multiple of 4"):
        token_code_embedding(IDS, CodeSpec(vocab_size=9, num_bits=4, lift="interleave"), 10)
    with pytest.raises(ValueError, match="num_bits is 33"):
        token_code_embedding(IDS, CodeSpec(vocab_size=9, num_bits=33), 33)
    with pytest.raises(ValueError, match="shift is 16"):
        token_code_embedding(IDS, CodeSpec(vocab_size=9, num_bits=4, shift=16), 8)
    with pytest.raises(ValueError, match="ids is on cpu and out on meta"):
        token_code_embedding(IDS, CODE, 8, out=torch.empty(3, 2, 8, device="meta"))


def test_import_is_cheap():
    """Importing loads no Triton and starts no compiler."""
    code = (
        "import sys, subprocess; subprocess.Popen = None; import fixedcode_kernels; "
        "sys.exit('triton' in sys.modules or 'numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
