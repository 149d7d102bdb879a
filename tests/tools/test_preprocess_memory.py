"""tools/preprocess_data.py: memory does not grow with the input, but for 12 bytes a document."""

import random
import subprocess
import sys

import pytest

from fixedcode_megatron.data.bpe import train_byte_level_bpe

CODE = """
import resource, sys
from fixedcode_megatron.data.command_line import preprocess_main
status = preprocess_main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.exit(status)
"""


def peak(tmp_path, path, *flags):
    """Highest resident sets of the parent and of its worker, in bytes."""
    command = [sys.executable, "-c", CODE, "--input", path, "--output-prefix", tmp_path / "o"]
    command += ["--workers", "1", "--overwrite", "--tokenizer-type", "ByteLevelTokenizer", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *_, parent, worker = done.stdout.split()
    return int(parent), int(worker)


@pytest.mark.parametrize("documents", [500_000, pytest.param(20_000_000, marks=pytest.mark.slow)])
def test_many_documents_of_one_token(tmp_path, documents):
    """Case 13."""
    line = b'{"text":"a"}\n'
    (tmp_path / "few.jsonl").write_bytes(line * 250_000)  # more than a block
    with open(tmp_path / "many.jsonl", "wb") as stream:
        for _ in range(documents // 50_000):
            stream.write(line * 50_000)
    few, many = peak(tmp_path, tmp_path / "few.jsonl"), peak(tmp_path, tmp_path / "many.jsonl")
    assert (tmp_path / "o_text_document.bin").stat().st_size == 2 * documents
    assert many[0] - few[0] < 32 * documents + (8 << 20)
    assert many[1] - few[1] < 64 << 20  # the worker has no part in it


def test_a_large_input_needs_no_more_than_a_small_one(tmp_path):
    line = b'{"text":"' + b"many words " * 500 + b'"}\n'
    for name, count in (("small", 2000), ("large", 20_000)):
        (tmp_path / f"{name}.jsonl").write_bytes(line * count)
    small = peak(tmp_path, tmp_path / "small.jsonl")
    large = peak(tmp_path, tmp_path / "large.jsonl")
    assert large[0] - small[0] < 24 << 20
    assert large[1] - small[1] < 24 << 20


def test_words_that_occur_once_do_not_fill_the_memory(tmp_path):
    """An engine keeps every word it sees: of these 1.6 million, 425 MB if nobody ended it."""
    rng = random.Random(4)
    line = "".join(rng.choices("etaoinshrdlu ", (1,) * 12 + (2,), k=1 << 20))
    with open(tmp_path / "words.jsonl", "w") as stream:
        for shift in range(20):  # other letters in the place of these: other words
            shifted = line.translate(
                {ord(c): chr(0x4E00 + 16 * shift + i) for i, c in enumerate("etaoinshrdlu")}
            )
            stream.write(f'{{"text": "{shifted}"}}\n')
    train_byte_level_bpe(["the words"], 260, tmp_path / "tokenizer.json")
    tokenizer = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", tmp_path]
    worker = peak(tmp_path, tmp_path / "words.jsonl", *tokenizer)[1]
    assert worker < 320 << 20
