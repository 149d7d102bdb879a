"""tools/preprocess_data.py: the trouble reports that a first version must get right."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from fixedcode_megatron.data.bpe import train_byte_level_bpe
from fixedcode_megatron.data.indexed import IndexedDatasetReader

TOOL = Path(__file__).parents[2] / "tools" / "preprocess_data.py"


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    """A folder with a byte-level BPE of 290 ids and, beside it, the library's own tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    text = "a small text to train on, hi there, b c d, hello world, quick brown foxes jump " * 3
    train_byte_level_bpe([text], 290, folder / "tokenizer.json", progress=False)
    return folder, tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def pre(tmp_path, tokenizer, *flags, env=None):
    """Run the tool; the output prefix is out/o."""
    command = [sys.executable, str(TOOL), "--tokenizer-model", str(tokenizer), "--output-prefix"]
    command += [str(tmp_path / "out" / "o"), "--append-eod", *map(str, flags)]
    environment = {**os.environ, **(env or {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def write_lines(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def documents(prefix):
    reader = IndexedDatasetReader(prefix)
    return [reader[i].tolist() for i in range(len(reader))]


def left(tmp_path):
    folder = tmp_path / "out"
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def test_empty_first_document_is_left_out(tmp_path, bpe):
    """Case 1."""
    folder, reference = bpe
    lines = write_lines(tmp_path / "x.jsonl", '{"text":""}', '{"text":"hi"}')
    done = pre(tmp_path, folder, "--input", lines)
    assert done.returncode == 0, done.stderr
    assert documents(tmp_path / "out/o_text_document") == [[*reference.encode("hi").ids, 0]]
    summary = json.loads((tmp_path / "out/o_text_document.json").read_text())
    assert summary["skipped"] == {"empty": 1}
    assert (summary["documents"], summary["tokens"]) == (1, len(reference.encode("hi").ids) + 1)
    assert summary["max_token_id"] == max(reference.encode("hi").ids)


def test_nothing_but_empty_documents(tmp_path, bpe):
    """Case 1."""
    lines = write_lines(tmp_path / "x.jsonl", '{"text":""}')
    done = pre(tmp_path, bpe[0], "--input", lines)
    assert done.returncode == 1
    assert "no tokens written" in done.stderr
    assert left(tmp_path) == []


def test_each_key_has_both_files_and_documents_stay_aligned(tmp_path, bpe):
    """Case 2."""
    folder, reference = bpe
    lines = write_lines(
        tmp_path / "x.jsonl", '{"title":"a","text":"b c"}', '{"title":"","text":"d"}'
    )
    done = pre(tmp_path, folder, "--input", lines, "--json-keys", "title", "text")
    assert done.returncode == 0, done.stderr
    title = IndexedDatasetReader(tmp_path / "out/o_title_document")
    text = IndexedDatasetReader(tmp_path / "out/o_text_document")
    assert title.num_documents == text.num_documents == 2
    assert [s.tolist() for s in title] == [[*reference.encode("a").ids, 0]]
    assert [s.tolist() for s in text] == [[*reference.encode(t).ids, 0] for t in ("b c", "d")]
    assert title.document_indices.tolist() == [0, 1, 1]  # the second title has no sequence


def test_eod_is_counted_and_comes_once(tmp_path):
    """Cases 3 and 4."""
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "b": 3, "c": 4, "d": 5})
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(["<s>", "</s>"])
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    inner.save(str(tmp_path / "tokenizer.json"))
    lines = write_lines(tmp_path / "x.jsonl", '{"text":"a b c"}', '{"text":"d"}')
    done = pre(tmp_path, tmp_path, "--input", lines)
    assert done.returncode == 0, done.stderr
    assert documents(tmp_path / "out/o_text_document") == [[2, 3, 4, 1], [5, 1]]
    assert (tmp_path / "out/o_text_document.bin").stat().st_size == 6 * 2


def test_tokenizer_without_eod(tmp_path):
    """Case 3."""
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.save(str(tmp_path / "tokenizer.json"))
    done = pre(tmp_path, tmp_path, "--input", tmp_path / "not_even_there.jsonl")
    assert done.returncode == 1
    assert "--append-eod" in done.stderr and "tokenizer.json" in done.stderr
    lines = write_lines(tmp_path / "x.jsonl", '{"text":"a b"}')
    command = [sys.executable, TOOL, "--tokenizer-model", tmp_path, "--input", lines]
    subprocess.run([*command, "--output-prefix", tmp_path / "out/o"], check=True)
    assert documents(tmp_path / "out/o_text_document") == [[0, 1]]


BAD = (
    '{"txt":"a"}', '{"text":null}', '{"text":5}', '{"text":"o', '{"text":"a"}{"text":"b"}', "",
    '{"text":"ok"}',
)  # fmt: skip


def test_bad_records_are_skipped_and_counted(tmp_path, bpe):
    """Case 6."""
    folder, reference = bpe
    lines = write_lines(tmp_path / "x.jsonl", *BAD)
    done = pre(tmp_path, folder, "--input", lines, "--on-error", "skip")
    assert done.returncode == 0, done.stderr
    assert documents(tmp_path / "out/o_text_document") == [[*reference.encode("ok").ids, 0]]
    summary = json.loads((tmp_path / "out/o_text_document.json").read_text())
    assert summary["skipped"] == {
        "blank": 1, "malformed": 2, "missing": 1, "non-string": 1, "null": 1,
    }  # fmt: skip


@pytest.mark.parametrize("bad", range(5))
def test_a_bad_record_stops_with_its_place(tmp_path, bpe, bad):
    """Case 6."""
    lines = write_lines(tmp_path / "x.jsonl", '{"text":"ok"}', "", BAD[bad], '{"text":"ok"}')
    done = pre(tmp_path, bpe[0], "--input", lines, "--workers", 1)
    assert done.returncode == 1
    assert f"{lines}:3:" in done.stderr
    reason = ("no key 'text'", "key 'text' is null", "holds 5, not a string", "not one", "not one")
    assert reason[bad] in done.stderr
    assert "Traceback" not in done.stderr
    assert left(tmp_path) == []


def test_same_bytes_for_any_workers_and_compression_and_as_document_by_document(tmp_path, bpe):
    """Case 8."""
    folder, reference = bpe
    rng = np.random.default_rng(1)
    words = ["hi", "there", "world", "<|endoftext|>", "你好", "café", "😀", "a\tb"]
    texts = [" ".join(rng.choice(words, rng.integers(0, 400))) for _ in range(3000)]
    text = "".join(json.dumps({"text": t}) + "\n" for t in texts)
    (tmp_path / "x.jsonl").write_text(text)
    (tmp_path / "y.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    reference.encode_special_tokens = True
    expected = [[*reference.encode(t, add_special_tokens=False).ids, 0] for t in texts if t]
    outputs = set()
    for name, workers in (("x.jsonl", 0), ("x.jsonl", 3), ("y.jsonl.gz", 2)):
        done = pre(
            tmp_path, folder, "--input", tmp_path / name, "--workers", workers, "--overwrite",
            env={"TOKENIZERS_PARALLELISM": "true"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        prefix = tmp_path / "out/o_text_document"
        outputs.add(
            (prefix.with_suffix(".bin").read_bytes(), prefix.with_suffix(".idx").read_bytes())
        )
    assert len(outputs) == 1
    assert len(text) > 4 << 20  # several blocks
    assert documents(prefix) == expected


def test_files_of_a_glob_in_natural_order(tmp_path, bpe):
    """Case 10."""
    folder, reference = bpe
    for number in (10, 2, 1):
        write_lines(tmp_path / f"p_{number}.jsonl", json.dumps({"text": f"n{number}"}))
    done = pre(tmp_path, folder, "--input", tmp_path / "p_*.jsonl", "--workers", 3)
    assert done.returncode == 0, done.stderr
    assert documents(tmp_path / "out/o_text_document") == [
        [*reference.encode(t).ids, 0] for t in ("n1", "n2", "n10")
    ]


def test_unknown_kind_and_missing_file(tmp_path, bpe):
    """Case 10."""
    (tmp_path / "x.docx").write_text("{}")
    done = pre(tmp_path, bpe[0], "--input", tmp_path / "x.docx")
    assert done.returncode == 1 and ".jsonl" in done.stderr
    done = pre(tmp_path, bpe[0], "--input", tmp_path / "none.jsonl")
    assert done.returncode == 1 and "none.jsonl: no such file" in done.stderr


def test_gzip_cut_short(tmp_path, bpe):
    packed = gzip.compress(b'{"text":"hi there"}\n' * 5000)
    (tmp_path / "x.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    done = pre(tmp_path, bpe[0], "--input", tmp_path / "x.jsonl.gz")
    assert done.returncode == 1 and "cut short" in done.stderr
    assert left(tmp_path) == []


def start_long_run(tmp_path, tokenizer):
    """Start on an endless input (a named pipe) and wait until both workers are there."""
    os.mkfifo(tmp_path / "x.jsonl")
    command = [sys.executable, TOOL, "--tokenizer-model", tokenizer, "--append-eod"]
    command += ["--workers", "2", "--input", tmp_path / "x.jsonl"]
    parent = subprocess.Popen(
        [*command, "--output-prefix", tmp_path / "out/o"], stderr=subprocess.PIPE, text=True
    )
    pipe = open(tmp_path / "x.jsonl", "wb")  # noqa: SIM115
    deadline = time.monotonic() + 60
    while len(workers := worker_ids(parent.pid)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return parent, workers, pipe


def worker_ids(parent):
    """The parent starts the template, which forks the workers."""
    return [worker for template in child_ids(parent) for worker in child_ids(template)]


def child_ids(process):
    try:
        listing = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in listing.split()]


def feed_until_end(parent, pipe):
    deadline = time.monotonic() + 60
    try:
        while parent.poll() is None and time.monotonic() < deadline:
            pipe.write(b'{"text":"hello world hi there"}\n' * 20000)
            pipe.flush()
    except BrokenPipeError:
        pass
    assert parent.wait(timeout=60) is not None
    return parent.stderr.read()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_a_killed_worker_ends_the_run(tmp_path, bpe):
    """Case 7."""
    parent, children, pipe = start_long_run(tmp_path, bpe[0])
    os.kill(children[0], signal.SIGKILL)
    message = feed_until_end(parent, pipe)
    assert parent.returncode == 1
    assert "SIGKILL" in message and "Traceback" not in message
    assert left(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_sigterm_cleans_up(tmp_path, bpe):
    parent, children, pipe = start_long_run(tmp_path, bpe[0])
    pipe.write(b'{"text":"hello world hi there"}\n' * 100000)
    pipe.flush()
    assert left(tmp_path) == ["o_text_document.bin.partial"]
    parent.send_signal(signal.SIGTERM)
    feed_until_end(parent, pipe)
    assert parent.returncode == 143
    assert left(tmp_path) == []
    assert all(not Path(f"/proc/{child}").exists() for child in children)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_kill_9_leaves_only_a_temporary_name_and_the_next_run_is_as_if_nothing_was(tmp_path, bpe):
    """Case 14."""
    parent, children, pipe = start_long_run(tmp_path, bpe[0])
    pipe.write(b'{"text":"hello world hi there"}\n' * 100000)
    pipe.flush()
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert left(tmp_path) == ["o_text_document.bin.partial"]
    (tmp_path / "x.jsonl").unlink()
    lines = write_lines(tmp_path / "x.jsonl", '{"text":"hi"}')
    assert pre(tmp_path, bpe[0], "--input", lines).returncode == 0
    again = pre(tmp_path, bpe[0], "--input", lines)
    assert again.returncode == 1 and "--overwrite" in again.stderr
    assert left(tmp_path) == [f"o_text_document.{suffix}" for suffix in ("bin", "idx", "json")]
    assert documents(tmp_path / "out/o_text_document") == [[*bpe[1].encode("hi").ids, 0]]


def test_disk_full(tmp_path, bpe):
    """Case 14."""
    lines = write_lines(tmp_path / "x.jsonl", *['{"text":"hello world hi there"}'] * 20000)
    command = f"ulimit -f 100; exec {sys.executable} {TOOL} --tokenizer-model {bpe[0]}"
    command += f" --input {lines} --output-prefix {tmp_path}/out/o --workers 0"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "File too large" in done.stderr and "Traceback" not in done.stderr
    assert left(tmp_path) == []


def test_a_tokenizer_that_cannot_encode_a_text(tmp_path):
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "</s>": 1}))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.save(str(tmp_path / "tokenizer.json"))
    lines = write_lines(tmp_path / "x.jsonl", '{"text":"a b"}')
    done = pre(tmp_path, tmp_path, "--input", lines)
    assert done.returncode == 1
    assert "cannot encode a document" in done.stderr and "Traceback" not in done.stderr


def test_flags_of_a_published_script(tmp_path, bpe):
    """Case 9."""
    lines = write_lines(tmp_path / "x.jsonl", '{"text":"hi"}')
    flags = ["--partitions", 1, "--keep-sequential-samples", "--log-interval", 1000]
    assert pre(tmp_path, bpe[0], "--input", lines, *flags).returncode == 0
    lines = write_lines(tmp_path / "y.jsonl", json.dumps({"text": "A one.\nB two."}))
    flags += ["--split-sentences", "--keep-newlines"]
    assert pre(tmp_path, bpe[0], "--input", lines, *flags).returncode == 0
    reader = IndexedDatasetReader(tmp_path / "out/o_text_sentence")
    encode = bpe[1].encode
    assert reader[0].tolist() == encode("A one.\n").ids
    assert reader[1].tolist()[:-1] == encode("B two.").ids
    assert reader.document_indices.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("vocab_size", "itemsize"), [(65499, 2), (65500, 2), (65535, 2), (65536, 4), (131071, 4)]
)
def test_type_of_the_ids(tmp_path, vocab_size, itemsize):
    """Case 16: A NullTokenizer of V ordinary ids has V + 1; its EOD is V, the largest."""
    lines = write_lines(tmp_path / "x.jsonl", json.dumps({"text": f"0 {vocab_size - 1} 1"}))
    command = [sys.executable, TOOL, "--tokenizer-type", "NullTokenizer", "--append-eod"]
    command += ["--vocab-size", str(vocab_size), "--input", lines, "--workers", "0"]
    command += ["--output-prefix", tmp_path / "out/o"]
    subprocess.run(command, check=True)
    assert documents(tmp_path / "out/o_text_document") == [[0, vocab_size - 1, 1, vocab_size]]
    assert (tmp_path / "out/o_text_document.bin").stat().st_size == 4 * itemsize
    narrow = [*command, "--overwrite", "--dtype", "uint16"]
    done = subprocess.run(narrow, capture_output=True, text=True)
    assert done.returncode == (1 if itemsize == 4 else 0)
    assert ("--dtype int32 or auto" in done.stderr) == (itemsize == 4)


def test_lines_of_progress_without_a_terminal(tmp_path, bpe):
    lines = write_lines(tmp_path / "x.jsonl", *['{"text":"hello world hi there"}'] * 200000)
    done = pre(tmp_path, bpe[0], "--input", lines, "--log-interval", 0, "--workers", 0)
    shown = [line for line in done.stderr.splitlines() if "s left" in line]
    assert len(shown) == 4  # blocks of 2 MiB (and the line it ends in)
    assert shown[0].startswith("33 % of 6.4 MB, ") and shown[-1].startswith("100 %")
    quiet = pre(tmp_path, bpe[0], "--input", lines, "--overwrite")
    assert "s left" not in quiet.stderr


def test_train_tokenizer(tmp_path):
    lines = write_lines(tmp_path / "x.jsonl", '{"text":"hello hello world"}', '{"text":"world"}')
    command = [sys.executable, TOOL.with_name("train_tokenizer.py"), "--input", lines, "--output"]
    command += [tmp_path / "tok", "--vocab-size"]
    subprocess.run([*command, "262"], check=True)
    inner = tokenizers.Tokenizer.from_file(str(tmp_path / "tok" / "tokenizer.json"))
    assert inner.get_vocab_size() == 262
    assert len(inner.encode(" world").ids) < 6
    again = subprocess.run([*command, "262"], capture_output=True, text=True)
    assert again.returncode == 1 and "--overwrite" in again.stderr
