"""`tools/evaluate_model.py`: our adapter beside the harness's own; a model whose results are known.

Tasks and their data are made here; nothing is downloaded.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import shutil
import sys

import pytest
import torch
import yaml
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.evaluation.command import main
from fixedcode_megatron.interop.hf_export import export
from fixedcode_megatron.interop.models import load_model
from fixedcode_megatron.interop.tensor_parallel import Share
from tests.distributed import export_cases
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

V, EOD, LENGTH = 64, 63, 16
MODEL = (
    f"--num-layers 2 --hidden-size 24 --num-attention-heads 4 --num-query-groups 2 "
    f"--ffn-hidden-size 20 --seq-length {LENGTH} --swiglu --normalization RMSNorm "
    "--input-interface gf2 --micro-batch-size 1 --train-iters 1 --lr 1e-3 --no-save-rng "
    "--hidden-dropout 0 --attention-dropout 0 --no-save-optim --data-path unread"
)
# The planted model: after id i comes 5 i + 3 modulo 64, with logit Z; all other logits are 0. From
# any id on it says all 64; after 12 comes 63, which ends a text.
Z = 4.0
RIGHT, WRONG = Z - math.log(math.exp(Z) + V - 1), -math.log(math.exp(Z) + V - 1)


def following(i: int) -> int:
    return (5 * i + 3) % V


def chain(start: int, count: int) -> list[int]:
    """What the planted model says after `start`."""
    ids = []
    for _ in range(count):
        start = following(start)
        ids.append(start)
    return ids


def words(ids: list[int]) -> str:
    return " ".join(f"w{i}" for i in ids)


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory):
    """The libraries' own files go here, and nothing is downloaded."""
    import datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Checkpoints `random` and `planted`, and the first one's exports."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    root = tmp_path_factory.mktemp("models")
    (root / "hf").mkdir()
    vocabulary = {f"w{i}": i for i in range(EOD)} | {"<|endoftext|>": EOD}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(root / "hf" / "tokenizer.json"))
    planted().save_pretrained(root / "hf")
    argv = [*MODEL.split(), "--save", str(root / "random")]
    argv += ["--tokenizer-model", str(root / "hf")]
    run_ranks(1, export_cases.save_and_import, argv, {str(root / "hf"): str(root / "planted")})
    for form in ("plain", "table-free"):
        export(root / "random", root / form, form)
    return root


def planted() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=V,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        rms_norm_eps=1e-12,
        bos_token_id=None,
        eos_token_id=EOD,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(V))
        model.lm_head.weight.zero_()
        for i in range(V):  # the norm makes the 1 of a one-hot vector the root of 64
            model.lm_head.weight[following(i), i] = Z / 8
    return model


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder of tasks; of the planted model's answers 9 of 12 and 7 of 10 are right."""
    folder = tmp_path_factory.mktemp("tasks")
    choices = [
        {"text": f"w{i}", "choices": [f"w{i}", f"w{following(i)}"], "gold": int(i < 9)}
        for i in range(12)
    ]
    last = [{"text": f"w5 w{i}", "last": f" w{following(i) if i < 7 else 0}"} for i in range(10)]
    texts = [{"text": words(chain(EOD, count))} for count in (1, LENGTH, LENGTH + 1, 40)]
    for name, rows in (("choices", choices), ("last", last), ("texts", texts)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)
    mean = {"aggregation": "mean", "higher_is_better": True}
    write_task(
        folder,
        "choices",
        output_type="multiple_choice",
        doc_to_target="gold",
        doc_to_choice="choices",
        metric_list=[{"metric": "acc", **mean}],
    )
    perplexity = {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}
    write_task(
        folder,
        "last",
        output_type="loglikelihood",
        doc_to_target="last",
        target_delimiter="",
        metric_list=[{"metric": "acc", **mean}, perplexity],
    )
    write_task(
        folder,
        "texts",
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="text",
        metric_list=[{"metric": "word_perplexity"}],
    )
    return folder


def write_task(folder, name, **settings):
    common = {"task": name, "dataset_path": "json", "test_split": "test", "doc_to_text": "text"}
    common["dataset_kwargs"] = {"data_files": {"test": str(folder / f"{name}.jsonl")}}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(common | settings))


def evaluated(load, tasks, *flags):
    """Results of the program, and what it printed is left for capsys."""
    path = tasks / "results.json"
    argv = ["--load", str(load), "--include-path", str(tasks), "--output", str(path)]
    assert main([*argv, "--tasks", "choices,last", "texts", *flags]) == 0
    return json.loads(path.read_text())


@pytest.mark.parametrize("load", ["planted", "hf"])
def test_results_are_what_arithmetic_says(root, tasks, capsys, load):
    """Through our adapter and the harness's own; texts are longer than the model, too."""
    found = evaluated(root / load, tasks)["results"]
    assert found["choices"]["acc,none"] == 9 / 12
    assert found["choices"]["acc_stderr,none"] == pytest.approx(math.sqrt(0.75 * 0.25 / 11))
    assert found["last"]["acc,none"] == 7 / 10
    mean = (7 * RIGHT + 3 * WRONG) / 10
    assert found["last"]["perplexity,none"] == pytest.approx(math.exp(-mean), rel=1e-5)
    assert found["texts"]["word_perplexity,none"] == pytest.approx(math.exp(-RIGHT), rel=1e-5)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["choices", "acc", "75.00", "13.06"] in rows


def test_limits_and_what_is_recorded(root, tasks):
    """The first four answers are right."""
    found = evaluated(root / "planted", tasks, "--limit", "4", "--batch-size", "3")
    assert found["results"]["choices"]["acc,none"] == 1.0
    assert found["n-samples"]["choices"] == {"original": 12, "effective": 4}
    model = found["model"]
    assert (model["limit"], model["iteration"], model["vocab_size"]) == (4, 0, V)
    assert model["input_interface"] == "learned"


def test_two_ranks_share_a_model(root, tasks, tmp_path):
    """Random weights, whose likelihoods depend on every one of them."""
    alone = evaluated(root / "random", tasks)["results"]
    argv = ["--load", str(root / "random"), "--include-path", str(tasks)]
    argv += ["--output", str(tmp_path / "two.json"), "--tasks", "choices", "last", "texts"]
    assert run_ranks(2, export_cases.evaluate, argv, str(tmp_path)) == [0, 0]
    shared = json.loads((tmp_path / "two.json").read_text())["results"]
    for task, metric in (("last", "perplexity"), ("texts", "word_perplexity")):
        key = f"{metric},none"
        assert shared[task][key] == pytest.approx(alone[task][key], rel=1e-5)
        assert abs(alone[task][key] / V - 1) > 1e-3  # not what all-zero logits give
    assert shared["choices"] == alone["choices"]


def test_ranks_end_with_rank_0(root, tmp_path):
    """Which finds that a task's data are missing, while the other waits for what to do."""
    write_task(tmp_path, "lost", output_type="loglikelihood", doc_to_target="text")
    argv = ["--load", str(root / "random"), "--include-path", str(tmp_path), "--tasks", "lost"]
    logs = tmp_path / "logs"
    assert run_ranks(2, export_cases.evaluate, argv, str(tmp_path), output=logs) == [1, 1]
    for rank, said in enumerate(("--tasks lost: its data", "rank 0 has ended")):
        log = (logs / f"rank{rank}.log").read_text()
        assert f"error: {said}" in log and "Traceback" not in log


def test_a_model_is_shared_by_as_many_as_divide_it():
    config = {"num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 8}
    half = {"num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 4}
    assert Share(0, 2).settings(config) == half
    with pytest.raises(UserError, match=r"4 processes .* of --num-attention-heads 6, --num-query"):
        Share(0, 4).settings(config)


def test_the_second_ranks_part_of_each_tensor():
    """Of four rows or columns the last two; of a gated layer, of the gate and of the rest."""
    rows, second = torch.arange(8).view(4, 2), Share(1, 2)
    assert second.of("layers.0.attention.qkv.weight", rows, gated=True).tolist() == [[4, 5], [6, 7]]
    assert second.of("layers.0.mlp.fc1.weight", rows, gated=False).tolist() == [[4, 5], [6, 7]]
    assert second.of("layers.0.mlp.fc1.weight", rows, gated=True).tolist() == [[2, 3], [6, 7]]
    assert second.of("layers.0.mlp.fc2.weight", rows, gated=True).tolist() == [[1], [3], [5], [7]]
    bias = torch.ones(3)
    assert second.of("layers.0.attention.proj.bias", bias, gated=True).tolist() == [0, 0, 0]
    assert Share(0, 2).of("layers.0.attention.proj.bias", bias, gated=True).tolist() == [1, 1, 1]
    assert second.of("layers.0.attention.norm.weight", bias, gated=True) is bias


def test_what_is_evaluated_alone(root):
    with pytest.raises(UserError, match="a Hugging Face folder takes one process"):
        load_model(root / "plain", share=Share(0, 2))


def test_exports_give_what_the_checkpoint_gives(root, tasks, tmp_path):
    """Case 4: a tokenizer that puts a token in front of each text does not do so here, as in
    training."""
    folder = shutil.copytree(root / "table-free", tmp_path / "folder")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
        "pair": [],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [EOD], "tokens": ["<|endoftext|>"]}
        },
    }
    tokenizer["post_processor"]["single"].append({"Sequence": {"id": "A", "type_id": 0}})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert AutoTokenizer.from_pretrained(folder)("w3").input_ids == [EOD, 3]
    theirs = evaluated(folder, tasks)["results"]
    ours = evaluated(root / "random", tasks)["results"]
    assert theirs["choices"]["acc,none"] == ours["choices"]["acc,none"]
    for task, metric in (("last", "perplexity"), ("texts", "word_perplexity")):
        key = f"{metric},none"
        assert theirs[task][key] == pytest.approx(ours[task][key], rel=1e-5)


def native(folder, batch_size=5):
    from fixedcode_megatron.evaluation.native_lm import NativeLM
    from fixedcode_megatron.evaluation.scoring import Scorer, Team

    loaded = load_model(folder)
    return NativeLM(loaded, Team(Scorer(loaded)), batch_size)


def instances(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, args, i) for i, args in enumerate(arguments)]


def test_likelihoods_are_those_of_the_exported_model(root):
    """Multiple choice, last words, whole texts and continuations, beside the harness's own class;
    some contexts are empty, some longer than the model."""
    from lm_eval.models.huggingface import HFLM

    draw = random.Random(3)

    def text(count):
        return words([draw.randrange(EOD) for _ in range(count)])

    contexts = [text(draw.randrange(1, 25)) for _ in range(12)]
    pairs = [(c, f" {text(n)}") for c in contexts for n in (1, 1, 3)]  # choices
    pairs += [(text(9), f" {text(1)}") for _ in range(5)]  # last words
    pairs += [("", text(4)), ("", text(LENGTH))]
    texts = [(text(n),) for n in (1, 2, LENGTH - 1, LENGTH, LENGTH + 1, 3 * LENGTH + 5)]
    ours = native(root / "random")
    scored = ours.loglikelihood(instances("loglikelihood", pairs))
    rolled = ours.loglikelihood_rolling(instances("loglikelihood_rolling", texts))
    options = {"until": ["w7"], "max_gen_toks": 6, "do_sample": False}
    prompts = [(text(draw.randrange(1, 9)), dict(options)) for _ in range(9)]
    said = ours.generate_until(instances("generate_until", prompts))
    assert torch.tensor([value for value, _ in scored]).std() > 0.3
    for form in ("plain", "table-free"):
        tokenizer = AutoTokenizer.from_pretrained(root / form)
        theirs = HFLM(pretrained=load_model(root / form).model, tokenizer=tokenizer, batch_size=4)
        expected = theirs.loglikelihood(instances("loglikelihood", pairs), disable_tqdm=True)
        for (value, greedy), (their_value, their_greedy) in zip(scored, expected, strict=True):
            assert abs(value - their_value) < 1e-4
            assert greedy == their_greedy
        expected = theirs.loglikelihood_rolling(instances("loglikelihood_rolling", texts), True)
        assert rolled == pytest.approx(expected, abs=1e-4)
        assert said == theirs.generate_until(instances("generate_until", prompts), True)


def test_texts_are_continued_up_to_a_stop(root):
    """At most six tokens; after w12 the text ends; a stop string is no part of it."""
    options = {"until": [], "max_gen_toks": 6}
    stop = f"w{chain(61, 3)[-1]}"
    requests = [
        ("w8", options),
        ("w5 w61", options),
        ("w61", options | {"until": [stop, "never"]}),
        ("w12", options),
        (words([2] * 30 + [61]), options),
    ]
    said = native(root / "planted", 2).generate_until(instances("generate_until", requests))
    assert said[0] == words(chain(8, 6))
    assert said[1] == said[4] == words(chain(61, 6))
    assert said[2] == words(chain(61, 2)) + " "
    assert said[3] == ""


def test_sampling_differs_from_text_to_text(root):
    """With a temperature of 1 each of 20 equal prompts draws from a stream of its own."""
    options = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 4}
    lm = native(root / "random", 3)
    said = lm.generate_until(instances("generate_until", [("w1", options)] * 20))
    assert len(set(said)) > 15
    assert said == lm.generate_until(instances("generate_until", [("w1", options)] * 20))
    with pytest.raises(UserError, match="num_beams"):
        lm.generate_until(instances("generate_until", [("w1", {"num_beams": 4})]))


def test_what_does_not_fit_the_model(root, caplog):
    lm = native(root / "planted")
    long = words(chain(EOD, 30))
    [(value, greedy)] = lm.loglikelihood(
        instances("loglikelihood", [(long, f" w{following(chain(EOD, 30)[-1])}")])
    )
    assert value == pytest.approx(RIGHT, abs=1e-5) and greedy
    assert "1 of 1 texts are longer than the model's 16 positions" in caplog.text
    with pytest.raises(UserError, match="an answer of 17 tokens, where 1 to 16"):
        lm.loglikelihood(instances("loglikelihood", [("w1", f" {words([1] * 17)}")]))
    smaller = native(root / "planted")
    smaller._loaded = dataclasses.replace(smaller._loaded, vocab_size=40, eod=None)
    with pytest.raises(UserError, match=r"id 45, the model knows 0\.\.39"):
        smaller.loglikelihood(instances("loglikelihood", [("w1", " w45")]))
    with pytest.raises(UserError, match="no end-of-document token"):
        smaller.loglikelihood_rolling(instances("loglikelihood_rolling", [("w1",)]))


def test_the_papers_results_stand_beside_ours(root, tasks):
    """Each in its model's column; of a suite's groups, the parts are left out."""
    from fixedcode_megatron.evaluation.report import table
    from fixedcode_megatron.evaluation.suites import SUITES

    results = {
        "results": {
            "hellaswag": {"acc,none": 0.5, "acc_norm,none": 0.25, "acc_norm_stderr,none": 0.01},
            "mmlu": {"acc,none": 0.26, "acc_stderr,none": "N/A"},
            "mmlu_virology": {"acc,none": 0.2},
            "wikitext": {"word_perplexity,none": 20.0, "byte_perplexity,none": 2.0},
        }
    }
    shown = table(results, "paper-b", list(SUITES["paper-b"].metrics)).splitlines()
    assert "their learned  their Binary16  their GF2" in shown[0]
    rows = [line.split() for line in shown[1:4]]
    assert rows[0] == "hellaswag acc_norm 25.00 1.00 57.79 52.40 51.44".split()
    assert rows[1] == "mmlu acc 26.00 - 25-26 25-26 25-26".split()
    assert rows[2] == "wikitext word_perplexity 20 - 16.50 18.58 19.03".split()
    assert "its own published results" in shown[4]
    assert "2.44" in table(results, "paper-a", ["hellaswag"]).splitlines()[-1]


def test_mistakes_are_one_line(root, tasks, tmp_path, capsys, monkeypatch):
    def says(*flags):
        assert main(["--load", str(root / "planted"), *flags]) == 1
        error = capsys.readouterr().err
        assert "Traceback" not in error
        return error

    assert "give --suite paper-b" in says()
    assert "--batch-size 0: too small" in says("--suite", "paper-a", "--batch-size", "0")
    assert "is no folder" in says("--tasks", "x", "--include-path", str(tmp_path / "x"))
    assert "is no folder" in says("--tasks", "x", "--output", str(tmp_path / "x" / "y.json"))
    write_task(tmp_path, "lost", output_type="loglikelihood", doc_to_target="text")
    error = says("--tasks", "lost", "--include-path", str(tmp_path))
    assert "--tasks lost: its data could not be loaded" in error and "--include-path" in error
    (tmp_path / "half.yaml").write_text("task: half\ndata: [")
    assert "half.yaml is damaged" in says("--tasks", "half", "--include-path", str(tmp_path))
    larger = shutil.copytree(root / "hf", tmp_path / "larger")
    tokenizer = AutoTokenizer.from_pretrained(root / "hf")
    tokenizer.add_tokens(["w63", "w64"])
    tokenizer.save_pretrained(larger)
    chosen = ("--tasks", "choices", "--include-path", str(tasks))
    assert "it has 66 ids, the model 64" in says(*chosen, "--load", str(larger))
    (larger / "tokenizer.json").unlink()
    assert "no tokenizer of transformers there" in says(*chosen, "--load", str(larger))
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert "lm_eval is not installed: pip install 'lm-eval" in says("--tasks", "choices")


def test_the_harness_has_the_suites_tasks(root, capsys):
    """The one name that it does not know is the one it does not know."""
    from fixedcode_megatron.evaluation.suites import SUITES

    names = sorted({name for suite in SUITES.values() for name in suite.metrics})
    assert len(names) == 10
    assert main(["--load", str(root / "planted"), "--tasks", *names, "helaswag"]) == 1
    assert "--tasks helaswag: the harness knows no such task; did you mean hellaswag" in (
        capsys.readouterr().err
    )
