"""The plain PyTorch module, and models of the transformers library without their table."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fixedcode_megatron import FixedCodeEmbedding, TokenCode, replace_input_embeddings
from fixedcode_megatron.errors import UserError

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
IDS = torch.tensor([[3, 77, 0], [95, 5, 64]])


def snippet(heading):
    """The Python block under a heading of the page."""
    text = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1]
    [block] = re.findall(r"```python\n(.*?)```", text.split("\n## ")[0], re.DOTALL)
    return block


def test_ids_of_any_shape_give_their_bits():
    embedding = FixedCodeEmbedding(TokenCode.binary(100), 14)
    found = embedding(IDS)
    bits = [[[id >> (i % 7) & 1 for i in range(14)] for id in row] for row in IDS.tolist()]
    assert torch.equal(found, torch.tensor(bits, dtype=torch.float32))
    assert torch.equal(embedding(IDS[0, 1]), found[0, 1])
    assert embedding(IDS[:, :0]).shape == (2, 0, 14)
    assert torch.equal(embedding(IDS.int()), found)
    assert list(embedding.state_dict()) == list(embedding.parameters()) == []
    assert (embedding.num_embeddings, embedding.embedding_dim) == (100, 14)


@pytest.mark.parametrize("make", [TokenCode.gf2, TokenCode.random])
def test_other_codes(make):
    code = make(100, scale=0.5)
    assert torch.equal(FixedCodeEmbedding(code, 21)(IDS), code.embed(IDS, 21))


def test_the_dtype_follows_the_model():
    model = torch.nn.Sequential(
        FixedCodeEmbedding(TokenCode.binary(100), 14), torch.nn.Linear(14, 3)
    )
    for dtype in (torch.bfloat16, torch.float64, torch.float16):
        assert model.to(dtype)[0](IDS).dtype == dtype
    assert model.to("meta")[0].dtype == torch.float16  # a move changes the device alone
    given = FixedCodeEmbedding(TokenCode.binary(100), 14, dtype=torch.bfloat16)
    assert given(IDS).dtype == torch.bfloat16


def test_compiles_in_one_piece():
    embedding = FixedCodeEmbedding(TokenCode.binary(100), 14)
    compiled = torch.compile(embedding, backend="eager", fullgraph=True)
    assert torch.equal(compiled(IDS), embedding(IDS))


def test_mistakes():
    with pytest.raises(UserError, match="13 is not a multiple of the code width 7"):
        FixedCodeEmbedding(TokenCode.binary(100), 13)
    with pytest.raises(ValueError, match="token id 100 at row 0, position 2"):
        FixedCodeEmbedding(TokenCode.binary(100), 14, check_ids=True)(torch.tensor([3, 4, 100]))


def test_plain_snippet_imports_torch_alone():
    code = (
        snippet("Plain PyTorch")
        + "import sys\nassert x.shape == (1, 2, 768)\n"
        + "assert x[0, 0, :16].tolist() == [1, 0, 0, 0, 1] + [0] * 11\n"
        + "print(*sorted({'megatron', 'transformers', 'triton', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "50000 768 []\n\n"


def llama(**options):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=28,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=0,
        **options,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_transformers_snippet(folder):
    from safetensors import safe_open

    names = {}
    exec(snippet("Transformers"), names)
    model = names["model"]
    with safe_open(folder / "my-model" / "model.safetensors", "pt") as saved:
        assert not [name for name in saved.keys() if "embed" in name]  # noqa: SIM118
    assert model.get_input_embeddings().code == TokenCode.binary(4096)


def test_a_model_without_table_computes_trains_and_generates(folder):
    """Equal to a model whose frozen table holds the code; and again after a round trip."""
    code = TokenCode.gf2(100)
    model, tabled = llama(), llama()
    tabled.get_input_embeddings().weight.data = code.table(28)
    replace_input_embeddings(model, code)
    expected = tabled(IDS, labels=IDS)
    expected.loss.backward()
    found = model(IDS, labels=IDS)
    found.loss.backward()
    assert torch.equal(found.logits, expected.logits)
    assert all(
        torch.equal(weight.grad, tabled.get_parameter(name).grad)
        for name, weight in model.named_parameters()
    )
    mask = torch.ones_like(IDS)
    options = dict(attention_mask=mask, max_new_tokens=6, do_sample=False)
    continued = model.generate(IDS, **options)
    assert torch.equal(continued, tabled.generate(IDS, **options))
    model.save_pretrained(folder)
    again = type(model).from_pretrained(folder)
    replace_input_embeddings(again)
    assert torch.equal(again.generate(IDS, **options), continued)
    assert again.get_input_embeddings().code.fingerprint == code.fingerprint


def test_a_tied_head_is_refused_or_keeps_a_copy(folder):
    model, code = llama(tie_word_embeddings=True), TokenCode.binary(100)
    table = model.lm_head.weight.detach().clone()
    with pytest.raises(UserError, match=r"tie_word_embeddings=True.*untie=True"):
        replace_input_embeddings(model, code)
    assert isinstance(model.get_input_embeddings(), torch.nn.Embedding)  # nothing has changed
    replace_input_embeddings(model, code, untie=True)
    assert torch.equal(model.lm_head.weight, table) and model.lm_head.weight.requires_grad
    model.save_pretrained(folder)
    again = type(model).from_pretrained(folder)
    replace_input_embeddings(again)
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_a_code_that_does_not_fit_is_refused():
    model = llama()
    with pytest.raises(UserError, match="vocab_size 90, the model 100 ids; make the code for 100"):
        replace_input_embeddings(model, TokenCode.binary(90))
    with pytest.raises(UserError, match=r"remembers no code; give one.*TokenCode\.binary"):
        replace_input_embeddings(model)
