"""Conversations: how they are read, written, tokenized and packed."""

import gzip
import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fixedcode_megatron.data.chat import Span, chat_format
from fixedcode_megatron.data.conversations import Conversation, Message, read_conversations
from fixedcode_megatron.data.packing import pack
from fixedcode_megatron.data.sft import build_sft_datasets, tokenized
from fixedcode_megatron.data.sft_dataset import Document, SFTDataset
from fixedcode_megatron.data.tokenizers import ByteLevelTokenizer, NullTokenizer
from fixedcode_megatron.errors import UserError

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
EOD = 256


def conversation(*texts, system=None):
    """Question and answer by turns."""
    turns = [Message("system", system)] if system else []
    turns += [Message("user assistant".split()[i % 2], text) for i, text in enumerate(texts)]
    return Conversation(tuple(turns), "file:1")


def written(tmp_path, *records, name="x.jsonl"):
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    return str(tmp_path / name)


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("record", "question", "answer"),
    [
        ({"prompt": "1+1?", "response": "2"}, "1+1?", "2"),
        ({"prompt": "1+1?", "completion": "2"}, "1+1?", "2"),
        ({"instruction": "Add.", "input": "1 and 1", "output": "2"}, "Add.\n\n1 and 1", "2"),
        ({"instruction": "Add.", "input": "", "output": "2"}, "Add.", "2"),
        ({"instruction": "Add.", "output": "2"}, "Add.", "2"),
        (
            {"messages": [dict(role="user", content="ä"), dict(role="assistant", content="ö")]},
            "ä",
            "ö",
        ),
    ],
)
def test_forms(tmp_path, record, question, answer):
    path = written(tmp_path, "\ufeff" + json.dumps(record), "", record)
    first, second = read_conversations(path)
    assert first.messages == (Message("user", question), Message("assistant", answer))
    assert (second.messages, second.where) == (first.messages, f"{path}:3")


def test_compressed_files_are_read(tmp_path):
    record = json.dumps({"prompt": "q", "response": "a" * 100_000}) + "\n"
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(record.encode() * 7))
    assert len(read_conversations(tmp_path / "x.jsonl.gz")) == 7


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not one JSON object a line"),
        ("[1]", "a JSON object is needed, found list"),
        ('{"text": "x", "id": 3}', "messages, prompt and response, .*; found 'text', 'id'"),
        ('{"messages": "x"}', "`messages` must be a list of objects, found 'x'"),
        ('{"messages": [{"role": "bot", "content": "x"}]}', "role is 'bot'; use system, user"),
        ('{"messages": [{"role": "user"}]}', "`content` must be a text, found None"),
        ('{"prompt": "x", "response": 3}', "`response` must be a text, found 3"),
        ('{"instruction": "x", "input": [], "output": null}', "`output` must be a text"),
    ],
)
def test_malformed_lines_are_refused_by_file_and_number(tmp_path, line, problem):
    path = written(tmp_path, {"prompt": "q", "response": "a"}, line)
    with pytest.raises(UserError, match=rf"x\.jsonl:2: .*{problem}"):
        read_conversations(path)


def test_a_file_without_conversations_is_named(tmp_path):
    """Else a run would not validate, and an evaluation measure nothing, in silence."""
    (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf\r\n \n")
    with pytest.raises(UserError, match=r"x\.jsonl holds no conversation"):
        read_conversations(tmp_path / "x.jsonl")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"gone\.jsonl: cannot be read \(No such file"):
        read_conversations(tmp_path / "gone.jsonl")


# ---------------------------------------------------------------- writing


def test_plain_writes_roles_as_titles():
    found = chat_format("plain", None).spans(conversation("a", "b", "c", "d", "e", system="Be."))
    assert found == [
        Span("Be.\n\nUser:\na\n\nAssistant:\n", False),
        Span("b", True, ends=True),
        Span("User:\nc\n\nAssistant:\n", False),
        Span("d", True, ends=True),
    ]  # what follows the last answer is left out


def test_identity_writes_contents_alone():
    found = chat_format("identity", None).spans(conversation("a", "b"))
    assert found == [Span("a", False), Span("b", True, ends=True)]


def with_template(tmp_path, template, **config):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").write_text(template)
    return str(tmp_path)


def test_a_chat_template_is_taken_where_there_is_one(tmp_path):
    folder = with_template(tmp_path, CHATML)
    chat = chat_format("auto", folder)
    assert chat.has_special_tokens and "chat template" in chat.name
    assert chat.spans(conversation("a", "b", "c", "d")) == [
        Span("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n", False),
        Span("b<|im_end|>\n", True),
        Span("<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n", False),
        Span("d<|im_end|>\n", True),
    ]
    assert chat_format("plain", folder).name == "plain"


@pytest.mark.parametrize("has_marks", [False, True])
def test_a_template_is_what_transformers_makes_of_it(tmp_path, has_marks):
    """Against `apply_chat_template` with transformers' own mask of assistant tokens."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    inner.train_from_iterator(["user assistant system"], trainer)
    inner.save(str(tmp_path / "tokenizer.json"))
    marked = CHATML.replace(
        "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}",
        "{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] + '<|im_end|>' + '\n' }}{% endgeneration %}"
        "{% else %}{{ message['content'] + '<|im_end|>' + '\n' }}{% endif %}",
    )
    assert marked != CHATML
    config = dict(eos_token="<|im_end|>", tokenizer_class="PreTrainedTokenizerFast")
    folder = with_template(tmp_path, marked if has_marks else CHATML, **config)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    turns = [dict(role="system", content="Be brief."), dict(role="user", content="héllo x")]
    turns += [dict(role="assistant", content="yes, no"), dict(role="user", content="b")]
    turns += [dict(role="assistant", content="")]
    expected = theirs.apply_chat_template(
        turns, chat_template=marked, return_dict=True, return_assistant_tokens_mask=True
    )
    path = written(tmp_path, {"messages": turns})
    data = flags(data_path=[path], tokenizer_model=folder, split="1,0,0")
    [train, _, _] = build_sft_datasets(data, ByteLevelTokenizer(), **sizes(128))
    ids, mask = expected["input_ids"], expected["assistant_masks"]
    sample, n = train[0], len(ids) - 1
    assert sample["tokens"][:n].tolist() == ids[:-1]
    assert sample["labels"][:n].tolist() == ids[1:]
    assert sample["loss_mask"][:n].tolist() == mask[1:] and sum(mask) > 10
    assert not sample["loss_mask"][n:].any()


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ raise_exception('roles must alternate') }}", "file:1: .*roles must alternate"),
        ("{% for m in messages %}{{ loop.length }}{% endfor %}", "file:1: .*cannot be told apart"),
        ("{% for %}", "not valid"),
    ],
)
def test_templates_that_cannot_be_used(tmp_path, template, problem):
    with pytest.raises(UserError, match=problem):
        chat_format("default", with_template(tmp_path, template)).spans(conversation("a", "b"))


def test_a_template_that_is_missing(tmp_path):
    with pytest.raises(UserError, match=r"has no chat template.*use plain"):
        chat_format("default", str(tmp_path))
    assert chat_format("auto", str(tmp_path)).name == "plain"
    templates = [dict(name="default", template=CHATML), dict(name="rag", template="x")]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert chat_format("default", str(tmp_path / "tokenizer_config.json")).has_special_tokens


# ---------------------------------------------------------------- tokens and samples


def flags(**given):
    names = "data_path train_data_path valid_data_path test_data_path tokenizer_type vocab_file "
    names += "tokenizer_model merge_file tiktoken_pattern tiktoken_special_tokens"
    found = dict.fromkeys(names.split()) | dict(split="80,20,0", sft_packing=True)
    return SimpleNamespace(**found | dict(sft_tokenizer_prompt_format="auto") | given)


def sizes(seq_length, train=8, held_out=1000, batch=4):
    return dict(
        seq_length=seq_length,
        seed=5,
        train_samples=train,
        held_out_samples=held_out,
        batch_size=batch,
    )


def test_a_sample_by_hand(tmp_path):
    """Two conversations of 3 and 2 predictions in a sample of 7; answers end with 256."""
    path = written(tmp_path, {"prompt": "ab", "response": "c"}, {"prompt": "d", "response": "e"})
    data = flags(data_path=[path], sft_tokenizer_prompt_format="identity", split="1,0,0")
    train, valid, test = build_sft_datasets(data, ByteLevelTokenizer(), **sizes(7))
    assert valid is None and test is None and len(train) == 8
    sample = {name: value.tolist() for name, value in train[0].items()}
    a, b, c, d, e = b"abcde"
    assert sample["tokens"] == [a, b, c, d, e, 0, 0]
    assert sample["labels"] == [b, c, EOD, e, EOD, 0, 0]
    assert sample["loss_mask"] == [0, 1, 1, 1, 1, 0, 0]
    assert sample["position_ids"] == [0, 1, 2, 0, 1, 0, 1]
    owner = [0, 0, 0, 1, 1, 2, 2]
    assert sample["attention_mask"] == [
        [[owner[i] != owner[j] or j > i for j in range(7)] for i in range(7)]
    ]


def test_what_does_not_fit_is_cut_or_left_out_and_counted(tmp_path, caplog):
    long_answer, long_prompt = "x" * 20, "q" * 9
    path = written(
        tmp_path,
        {"prompt": "q", "response": long_answer},
        {"prompt": long_prompt, "response": "a"},
        {"messages": [{"role": "user", "content": "no answer"}]},
        {"prompt": "q", "response": "fits"},
    )
    data = flags(data_path=[path], sft_tokenizer_prompt_format="identity", split="1,0,0")
    with caplog.at_level(logging.INFO):
        train, _, _ = build_sft_datasets(data, ByteLevelTokenizer(), **sizes(8, train=4))
    # 8 tokens of the long answer, 4 + 1 of the short one; samples of 8 and 5 predictions.
    assert (
        "train: 4 conversations with 13 answer tokens in 2 samples of 8 tokens, 81 % full; 1 were "
        "cut at --seq-length, 2 left out: no answer within it" in caplog.text
    )
    assert "the run reads 4 samples: 2.00 passes" in caplog.text
    cut = next(s for s in (train[0], train[1]) if s["loss_mask"].sum() == 8)
    assert cut["labels"].tolist() == [ord("x")] * 8  # without an end
    data.data_path = [written(tmp_path, {"prompt": long_prompt, "response": "a"})]
    with pytest.raises(UserError, match=r"none of the 1 train conversations.*--seq-length 8"):
        build_sft_datasets(data, ByteLevelTokenizer(), **sizes(8))


def test_conversations_are_split_in_their_order(tmp_path):
    records = [{"prompt": "q", "response": chr(97 + i)} for i in range(10)]
    data = flags(data_path=[written(tmp_path, *records)], sft_packing=False)
    parts = build_sft_datasets(data, ByteLevelTokenizer(), **sizes(64, train=8))
    train, valid, test = parts
    assert test is None and "attention_mask" not in train[0]

    def answers(dataset):
        samples = [dataset[i] for i in range(len(dataset))]
        return [
            chr(int(s["labels"][s["loss_mask"] > 0][0])) for s in samples if s["loss_mask"].any()
        ]

    assert sorted(answers(train)) == list("abcdefgh")
    # Held out: as it stands, each once, filled up to whole batches.
    assert answers(valid) == ["i", "j"] and len(valid) == 4
    own = flags(valid_data_path=data.data_path)
    parts = build_sft_datasets(own, ByteLevelTokenizer(), **sizes(64, train=0))
    assert [part is None for part in parts] == [True, False, True]
    limited = build_sft_datasets(data, ByteLevelTokenizer(), **sizes(64, held_out=1, batch=1))
    assert len(limited[1]) == 1


def test_each_pass_has_its_own_order():
    documents = [Document(np.array([i, i], np.int32), np.array([False, True])) for i in range(50)]
    packs = [[i] for i in range(50)]

    def order(seed):
        dataset = SFTDataset(documents, packs, seq_length=4, length=120, seed=seed, packed=False)
        return [int(dataset[i]["tokens"][0]) for i in range(120)]

    first = order(1)
    assert sorted(first[:50]) == sorted(first[50:100]) == list(range(50))
    assert first[:50] != first[50:100] and first[:20] != first[100:]
    assert order(1) == first != order(2)
    # NumPy's legacy generator never changes: a run that is resumed years later reads on.
    assert first[:5] == np.random.RandomState(1).permutation(50)[:5].tolist()


def test_an_answer_needs_an_end(tmp_path):
    tokenizer = NullTokenizer(10)
    tokenizer.eod_id = None
    data = flags(data_path=[written(tmp_path, {"prompt": "1 2", "response": "3"})])
    with pytest.raises(UserError, match="has no end-of-document token"):
        build_sft_datasets(data, tokenizer, **sizes(8))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 20), max_size=60))
def test_packing_keeps_every_document_once_and_no_two_samples_would_fit_in_one(lengths):
    samples = pack(lengths, 20)
    assert sorted(i for sample in samples for i in sample) == list(range(len(lengths)))
    full = sorted(sum(lengths[i] for i in sample) for sample in samples)
    assert all(total <= 20 for total in full)
    assert len(full) < 2 or full[0] + full[1] > 20


def test_packing_by_hand():
    assert pack([5, 3, 7, 2, 3], 10) == [[0, 3, 4], [1, 2]]  # 7 + 3, then 5 + 3 + 2
    assert pack([6, 5, 4, 4], 10) == [[0, 2], [1, 3]]
    assert pack([], 4) == []


def test_long_texts_are_tokenized_in_blocks():
    """More conversations than are tokenized at once come out in order."""
    many = [conversation("q", f"{i}") for i in range(1500)]
    found = tokenized(many, ByteLevelTokenizer(), chat_format("identity", None), 16)
    answers = [bytes(d.tokens[1:-1].tolist()).decode() for d in found.documents]
    assert answers == [str(i) for i in range(1500)]
    assert all(torch.from_numpy(d.is_answer).sum() == len(d.tokens) - 1 for d in found.documents)
