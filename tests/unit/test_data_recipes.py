"""The Python-library corpus: whole, repeatable, safe with several processes."""

import ast
import json
import subprocess
import sys

import pytest

from fixedcode_megatron.data import recipes
from fixedcode_megatron.data.indexed import IndexedDatasetReader
from fixedcode_megatron.data.python_library import Document, _split_docstrings
from fixedcode_megatron.data.tokenizers import build_tokenizer
from fixedcode_megatron.errors import UserError


def test_docstrings_become_prose_and_leave_the_source():
    text = (
        '"""Module."""\nimport os\n\nclass A:\n    """Class.\n\n    More.\n    """\n    x = 1\n\n'
    )
    text += '    def f(self):\n        "Method."\n        return "kept"\n'
    prose, lines = _split_docstrings(ast.parse(text), text, "json/tool.py")
    assert (
        prose
        == "json.tool\n\nModule.\n\njson.tool.A\n\nClass.\n\nMore.\n\njson.tool.A.f\n\nMethod.\n"
    )
    assert lines == [
        "import os", "", "class A:", "    x = 1", "", "    def f(self):",
        '        return "kept"', "",
    ]  # fmt: skip


def test_gathered_documents_are_many_different_and_mixed():
    documents = recipes.gather(progress=False)
    assert 5_000_000 < sum(len(d.text) for d in documents) < 20_000_000
    assert len({d.text for d in documents}) == len({d.source for d in documents}) == len(documents)
    for kind in ("docs", "docstrings", "code"):
        shares = []
        for part in (documents, documents[-len(documents) // 20 :]):  # a 5 % held-out tail
            sizes = [len(d.text) * (d.kind == kind) for d in part]
            shares.append(sum(sizes) / sum(len(d.text) for d in part))
        assert shares[1] == pytest.approx(shares[0], rel=0.5), kind
    assert not [d.source for d in documents if "/test/" in d.source or "site-packages" in d.source]


@pytest.fixture
def small_corpus(monkeypatch):
    """A corpus of 60 short documents in place of the library."""
    calls = []

    def gather(progress=True):
        calls.append(1)
        return [
            Document(f"d{i}", f"document {i} says hello number {i * 7}\n" * 5) for i in range(60)
        ]

    monkeypatch.setattr(recipes, "gather", gather)
    return calls


def test_prepared_once_and_made_again_when_damaged(tmp_path, small_corpus):
    first = recipes.prepare_python_library(tmp_path / "data", 300, progress=False)
    again = recipes.prepare_python_library(tmp_path / "data", 300, progress=False)
    assert first == again and len(small_corpus) == 1
    marker = json.loads((tmp_path / "data/recipe.json").read_text())
    assert marker["python"] == ".".join(map(str, sys.version_info[:3]))
    tokens = (tmp_path / "data/corpus_text_document.bin").read_bytes()
    (tmp_path / "data/corpus_text_document.bin").write_bytes(tokens[:-2])
    recipes.prepare_python_library(tmp_path / "data", 300, progress=False)
    assert len(small_corpus) == 2
    assert (tmp_path / "data/corpus_text_document.bin").read_bytes() == tokens
    assert sorted(p.name for p in tmp_path.iterdir()) == [".data.lock", "data"]


def test_dataset_is_the_corpus(tmp_path, small_corpus):
    prepared = recipes.prepare_python_library(tmp_path / "data", 300, progress=False)
    tokenizer = build_tokenizer("HuggingFaceTokenizer", str(prepared.tokenizer_model))
    assert (tokenizer.vocab_size, tokenizer.eod) == (300, 0)
    reader = IndexedDatasetReader(prepared.data_prefix)
    assert len(reader) == prepared.documents == 60
    assert sum(reader.sequence_lengths) == prepared.tokens
    for i, document in enumerate(recipes.gather()):
        assert reader[i][-1] == 0
        assert tokenizer.decode(reader[i][:-1]) == document.text


def test_another_folder_is_not_touched(tmp_path, small_corpus):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="holds other files"):
        recipes.prepare_python_library(tmp_path / "data", 300, progress=False)
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["thesis.tex"]


def test_a_failure_leaves_nothing(tmp_path, small_corpus):
    with pytest.raises(UserError, match="text is too small"):
        recipes.prepare_python_library(tmp_path / "data", 5000, progress=False)
    assert [p.name for p in tmp_path.iterdir()] == [".data.lock"]


def test_three_processes_at_once(tmp_path):
    code = (
        "import sys, fixedcode_megatron.data.recipes as r\n"
        "from fixedcode_megatron.data.python_library import Document\n"
        "def gather(progress=True):\n"
        f"    open(r'{tmp_path}/calls', 'a').write('x')\n"
        "    return [Document(str(i), f'document {i} says hello {i}\\n' * 5) for i in range(60)]\n"
        "r.gather = gather\n"
        f"print(r.prepare_python_library(r'{tmp_path}/data', 300, progress=False).tokens)\n"
    )
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [process.communicate(timeout=60)[0] for process in running]
    assert len(set(answers)) == 1 and int(answers[0]) > 60
    assert (tmp_path / "calls").read_text() == "x"  # one of them worked
