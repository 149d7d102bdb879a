"""What cached keys and values save: 256 greedy tokens by a model of the quickstart's size.

    chrt -r 10 .venv/bin/python benchmarks/generation.py

Both ways say the same tokens, or the program stops. Printed are CPU seconds of one thread, the
least of five runs each, which the machine's other work disturbs least.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch

from fixedcode_megatron.codes import TokenCode
from fixedcode_megatron.interop.cached_model import CachedModel
from fixedcode_megatron.interop.generation import continue_texts, generate
from fixedcode_megatron.interop.modeling_fixedcode import FixedCodeConfig, FixedCodeForCausalLM

VOCAB_SIZE, RUNS, NEW_TOKENS = 4096, 5, 256


def quickstart_model() -> FixedCodeForCausalLM:
    """The quickstart's shape (4 layers, width 192) with random weights."""
    config = FixedCodeConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        head_dim=32,
        max_position_embeddings=512,
        token_code=dataclasses.asdict(TokenCode.binary(VOCAB_SIZE)),
    )
    torch.manual_seed(0)
    model = FixedCodeForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape) * 0.05
    return model


def seconds(work: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
    """CPU seconds of this process, and what `work` returns."""
    begin = time.process_time()
    found = work()
    return time.process_time() - begin, found


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    model, prompt = quickstart_model(), [[1, 2, 3]]
    options = {"max_new_tokens": NEW_TOKENS, "vocab_size": VOCAB_SIZE, "temperature": 0.0}
    ways: dict[str, Callable[[], list[list[int]]]] = {
        "cached": lambda: continue_texts(CachedModel(model, VOCAB_SIZE), prompt, **options),
        "uncached": lambda: generate(lambda ids: model(ids).logits, prompt, **options),
    }
    measured = {way: [seconds(work) for _ in range(RUNS)] for way, work in ways.items()}
    texts = [text for runs in measured.values() for _, text in runs]
    assert all(text == texts[0] for text in texts), "the two ways say different tokens"
    cached, uncached = (min(taken for taken, _ in runs) for runs in measured.values())
    print(f"cached {cached:.2f} s, uncached {uncached:.2f} s: {uncached / cached:.1f} times faster")


if __name__ == "__main__":
    main()
