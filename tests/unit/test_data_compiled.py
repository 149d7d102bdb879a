"""Compiled code of the data tools where there is no compiler, or one that does not work."""

import json
from pathlib import Path

import pytest

from fixedcode_megatron.data import encoding, json_lines
from fixedcode_megatron.data.json_lines import JsonLinesReader
from fixedcode_megatron.data.preprocess import PreprocessOptions, preprocess
from tests.unit.test_data_engines import TRAINING, make
from tests.unit.test_data_json_lines import ORDINARY, texts_of


def failing_compiler(folder, body):
    """A program that says its version and then does `body`."""
    path = folder / "c++"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit 0\n{body}\n')
    path.chmod(0o755)
    return str(path)


COMPILERS = {
    "none": None,
    "fails": "echo 'no iostream' >&2; exit 1",
    "writes nothing": "exit 0",
    "writes no library": 'for out; do :; done; echo text >"$out"',
    "is no program": "",
}


@pytest.fixture
def compiler(request, tmp_path, monkeypatch):
    """Another C++ compiler, and an empty cache of libraries."""
    body = COMPILERS[request.param]
    path = None if body is None else failing_compiler(tmp_path, body)
    if request.param == "is no program":
        (tmp_path / "c++").write_bytes(b"\x7fELF")
    monkeypatch.setattr("fixedcode_kernels.build.find_compiler", lambda *names: path)
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr("fixedcode_kernels.build.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr("fixedcode_kernels.build._candidates", lambda: iter(()))
    json_lines.library.cache_clear()
    yield request.param
    json_lines.library.cache_clear()


LINES = [
    *ORDINARY,
    *((json.dumps({"text": text}, ensure_ascii=False).encode(), [text]) for text in TRAINING),
    (b'{"text": "not \xf4\x8f\xbf\xbe plain"}', []),
    (b'{"score": NaN, "text": "nor this"}', []),
]


def run(tmp_path, name, tokenizer):
    """Preprocess `lines.jsonl` in this process; return what it wrote."""
    options = PreprocessOptions(
        input=[str(tmp_path / "lines.jsonl")], output_prefix=str(tmp_path / name), append_eod=True,
        tokenizer_model=str(tokenizer), workers=0, progress=False,
    )  # fmt: skip
    (summary,) = preprocess(options)
    assert summary["tokenizer_engine"] == "gigatoken"
    prefix = f"{options.output_prefix}_text_document"
    written = [Path(prefix + end).read_bytes() for end in (".bin", ".idx")]
    return written, summary["documents"], summary["tokens"]


@pytest.mark.parametrize("digits", [False, True])
@pytest.mark.parametrize("compiler", COMPILERS, indirect=True)
def test_without_a_compiler_the_same_is_written(tmp_path, monkeypatch, compiler, digits):
    make(tmp_path / "tokenizer", digits=digits)
    lines = b"".join(data.rstrip(b"\n") + b"\n" for data, _ in LINES)
    (tmp_path / "lines.jsonl").write_bytes(lines)
    monkeypatch.setattr("fixedcode_megatron.data.sources.line_items.__defaults__", (300,))
    assert json_lines.library() is None and texts_of(b'{"text": "a"}') is None
    without = run(tmp_path, "without", tmp_path / "tokenizer")
    monkeypatch.undo()
    json_lines.library.cache_clear()
    if json_lines.library() is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setattr("fixedcode_megatron.data.sources.line_items.__defaults__", (300,))
    found = []

    def read(self, data, read=JsonLinesReader.read):
        found.append(read(self, data))
        return found[-1]

    monkeypatch.setattr(encoding.JsonLinesReader, "read", read)
    assert run(tmp_path, "with", tmp_path / "tokenizer") == without
    assert any(text is None for text in found) and sum(text is not None for text in found) > 2
