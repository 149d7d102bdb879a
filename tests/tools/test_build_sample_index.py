"""tools/build_sample_index.py: what it builds is what the training run looks for."""

import base64

import numpy as np
import pytest

from fixedcode_megatron import prebuild
from fixedcode_megatron.data.indexed import IndexedDatasetWriter


@pytest.fixture
def prefix(tmp_path):
    rng = np.random.default_rng(0)
    with IndexedDatasetWriter(tmp_path / "d", np.uint16) as writer:
        for _ in range(300):
            writer.add_document(rng.integers(0, 50, rng.integers(1, 40)))
        writer.commit()
    return str(tmp_path / "d")


def flags(prefix, cache, *more):
    return [
        "--data-path", prefix, "--split", "90,10,0", "--seq-length", "8", "--seed", "5",
        "--train-iters", "10", "--eval-iters", "2", "--data-cache-path", str(cache),
        "--vocab-size", "50", "--tensor-model-parallel-size", "2", "--micro-batch-size", "2",
        "--num-layers", "2", "--hidden-size", "96", "--num-attention-heads", "4", "--lr", "0.001",
        *more,
    ]  # fmt: skip


class Enough(Exception):
    """The datasets are built; the training itself is not of interest."""


def folders_of(cache):
    return {p.name: p.stat().st_mtime_ns for p in cache.glob("*-*") if p.is_dir()}


def test_the_run_asks_for_what_was_built(tmp_path, prefix, monkeypatch, capsys):
    """`pretrain` with 8 ranks, TP 2: a global batch of 2 x 4, so 80, 16 and 16 samples."""
    from fixedcode_megatron import pretrain
    from fixedcode_megatron.config import parse_args
    from fixedcode_megatron.data import datasets

    words = flags(prefix, tmp_path / "cache")
    assert prebuild.main([*words, "--world-size", "8"]) == 0
    assert capsys.readouterr().out.startswith("samples: train ")
    folders = folders_of(tmp_path / "cache")
    assert sorted(name.split("-")[0] for name in folders) == ["train", "valid"]
    cfg = parse_args(words, world_size=8)
    built = []
    original = datasets.build_datasets

    def record(*arguments, **options):
        built.append((options["samples"], original(*arguments, **options)))
        raise Enough

    monkeypatch.setattr(datasets, "build_datasets", record)
    with pytest.raises(Enough):
        pretrain.build_feeds(cfg, pretrain.load_tokenizer(cfg), 50)
    samples, (train, valid, test) = built[0]
    assert samples == (80, 16, 16)
    assert len(train) >= 80 and len(valid) >= 16 and test is None
    assert folders_of(tmp_path / "cache") == folders


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "give the run's --global-batch-size, or --world-size"),
        (["--world-size", "none"], "--world-size none: give the number of ranks"),
        (["--global-batch-size", "4", "--sead", "1"], "did you mean --seed?"),
        (["--global-batch-size", "4", "--vocab-size", "40"], "vocabulary has 40"),
    ],
)
def test_mistakes(tmp_path, prefix, capsys, more, message):
    assert prebuild.main(flags(prefix, tmp_path / "cache", *more)) == 1
    assert message in capsys.readouterr().err
    assert folders_of(tmp_path / "cache") == {}


def test_help_needs_no_flags(capsys):
    assert prebuild.main(["--help"]) == 0
    assert "--data-cache-path" in capsys.readouterr().out


def sentencepiece_model(folder):
    library = pytest.importorskip("sentencepiece")
    (folder / "text").write_text("the quick brown fox jumps over the lazy dog\n" * 50)
    library.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "m"), vocab_size=60,
        model_type="bpe", minloglevel=2,
    )  # fmt: skip
    return ["SentencePieceTokenizer", folder / "m.model"], 60, 2  # unk, <s>, </s>


def ranks(folder):
    pytest.importorskip("tiktoken")
    lines = (b"%s %d\n" % (base64.b64encode(bytes([i])), i) for i in range(256))
    (folder / "mine.tiktoken").write_bytes(b"".join(lines))
    more = ["--tiktoken-pattern", "gpt2", "--tiktoken-special-tokens", "<pad>", "<|endoftext|>"]
    return ["TikTokenizer", folder / "mine.tiktoken", *more], 258, 257


@pytest.mark.parametrize("make", [sentencepiece_model, ranks])
def test_training_takes_the_tokenizers_of_preprocessing(tmp_path, prefix, make):
    from fixedcode_megatron import pretrain
    from fixedcode_megatron.config import parse_args, sections
    from fixedcode_megatron.data import tokenizers

    assert set(sections.TOKENIZER_TYPES) == set(tokenizers.TOKENIZER_TYPES)
    (kind, model, *more), size, eod = make(tmp_path)
    words = flags(prefix, tmp_path / "cache", "--tokenizer-model", str(model), *more)
    place = words.index("--vocab-size")
    words[place : place + 2] = ["--tokenizer-type", kind]
    cfg = parse_args(words, world_size=2)
    tokenizer = pretrain.load_tokenizer(cfg)
    assert pretrain.vocab_size(cfg, tokenizer) == size and tokenizer.eod == eod
    assert prebuild.main([*words, "--world-size", "2"]) == 0
    assert len(folders_of(tmp_path / "cache")) == 2
