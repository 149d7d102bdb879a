"""Other people's training loops, run on CPUs with our input interface as docs/integrations.md says.

What is put in place of something here is what needs a GPU, or files that a wheel lacks.
"""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from tests.distributed.stock_checkpoints import _megatron_lm
from tests.unit.test_embedding import snippet

_MEGATRON = (
    "--num-layers 2 --hidden-size 72 --num-attention-heads 4 --seq-length 32 "
    "--max-position-embeddings 32 --micro-batch-size 2 --global-batch-size 4 --train-iters 2 "
    "--lr 1e-3 --lr-decay-iters 2 --lr-warmup-iters 0 --eval-iters 0 --eval-interval 100 "
    "--position-embedding-type rope --untie-embeddings-and-output-weights --normalization RMSNorm "
    "--tokenizer-type NullTokenizer --vocab-size 499 --mock-data --num-workers 0 --log-interval 1 "
    "--transformer-impl local --distributed-backend gloo --no-gradient-accumulation-fusion "
    "--no-persist-layer-norm --no-rope-fusion --no-masked-softmax-fusion --no-bias-gelu-fusion "
    "--hidden-dropout 0 --attention-dropout 0"
).split()


def megatron_lm(flags: list[str]) -> dict[str, Any]:
    """Two iterations of `megatron.training.pretrain`; what they computed and changed."""
    _megatron_lm()
    from megatron.core.datasets import utils
    from megatron.core.enums import ModelType
    from megatron.training import arguments, training
    from megatron.training.argument_utils import pretrain_cfg_container_from_args

    arguments.get_device_arch_version = lambda: 10  # a GPU that asks for no environment variable
    utils.compile_helpers = lambda: None  # compiled in the wheel, which holds no makefile
    training.initialize_megatron = partial(training.initialize_megatron, allow_no_cuda=True)
    training.set_jit_fusion_options = training.report_memory = lambda *_, **__: None
    sys.argv = ["pretrain_gpt.py", *_MEGATRON, *flags]
    names: dict[str, Any] = {}
    exec(snippet("Megatron-LM's training loop"), names)
    found: dict[str, Any] = {"losses": []}

    def model_provider(**options: Any) -> Any:
        model = found["model"] = names["model_provider"](**options)
        found["before"] = {name: p.detach().clone() for name, p in model.named_parameters()}
        return model

    def loss_function(mask: Any, losses: Any) -> Any:
        total, count = (losses.float() * mask).sum(), mask.sum().int()
        found["losses"].append(float(total / count))
        return total, count, {"lm loss": torch.stack([total.detach(), count]).clone()}

    def forward_step(data: Any, model: Any) -> Any:
        batch = next(data)
        found["tokens"] = batch["tokens"]
        losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
        return losses, partial(loss_function, batch["loss_mask"])

    args = arguments.parse_and_validate_args()
    training.pretrain(
        pretrain_cfg_container_from_args(args),
        _mock_datasets,
        ModelType.encoder_or_decoder,
        forward_step,
        model_provider,
    )
    model = found["model"]
    before, named = found["before"], model.named_parameters()
    changed = {name: not torch.equal(p, before[name]) for name, p in named}
    with torch.no_grad():
        x = model.embedding(found["tokens"], None)
    return {"losses": found["losses"], "changed": changed, "tokens": found["tokens"], "input": x}


def _mock_datasets(num_samples: list[int]) -> Any:
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset
    from megatron.training import get_args, get_tokenizer

    config = GPTDatasetConfig(
        random_seed=get_args().seed,
        sequence_length=get_args().seq_length,
        split="1,0,0",
        tokenizer=get_tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    return BlendedMegatronDatasetBuilder(MockGPTDataset, num_samples, lambda: True, config).build()


_mock_datasets.is_distributed = True  # type: ignore[attr-defined] # every rank calls it


def torchtitan(where: str) -> dict[str, Any]:
    """Two steps of torchtitan's own `Trainer` on a model of two layers."""
    sys.path.append(where)
    torch._utils._get_available_device_type = lambda: "cpu"  # type: ignore[attr-defined]
    torch.cpu.current_device = lambda: 0  # type: ignore[assignment, return-value]
    if not hasattr(torch.distributed, "set_timeout"):
        torch.distributed.set_timeout = lambda *_: None  # type: ignore[attr-defined]
    from torchtitan.components import metrics
    from torchtitan.models.common.attention import FlexAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    FlexAttention.compiled_flex_attn = staticmethod(_causal_attention)
    metrics.build_device_memory_monitor = _NoDeviceMemory
    names: dict[str, Any] = {}
    exec(snippet("torchtitan"), names)
    config = llama3_debugmodel()
    model = config.model_spec.model
    names["without_table"](model)
    model.layers = model.layers[:2]
    config.dataloader, config.tokenizer = _random_data(), _no_tokenizer()
    config.training.local_batch_size, config.training.seq_len = 2, 64
    config.training.steps, config.training.disable_cuda_graphs = 2, True
    config.debug.seed = 1
    config.validator.enable = config.checkpoint.enable = False
    trainer = config.build()
    [built] = trainer.model_parts
    before = {name: p.detach().clone() for name, p in built.named_parameters()}
    losses: list[float] = []
    step = trainer.metrics_processor.log
    trainer.metrics_processor.log = lambda *a, **k: (losses.append(a[1]), step(*a, **k))
    trainer.train()
    changed = {name: not torch.equal(p, before[name]) for name, p in built.named_parameters()}
    ids = torch.tensor([[3, 2047, 0]])
    return {"losses": losses, "changed": changed, "input": built.tok_embeddings(ids)}


def _causal_attention(q: Any, k: Any, v: Any, *, scale: Any, enable_gqa: bool, **_: Any) -> Any:
    attention = torch.nn.functional.scaled_dot_product_attention
    found = attention(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa)
    return found, SimpleNamespace(lse=None)


class _NoDeviceMemory:
    device_name = "cpu"

    def get_peak_stats(self) -> Any:
        from torchtitan.components.metrics import DeviceMemStats

        return DeviceMemStats(*[0] * len(DeviceMemStats._fields))

    def reset_peak_stats(self) -> None: ...


def _random_data() -> Any:
    from dataclasses import dataclass

    from torchtitan.components.dataloader import BaseDataLoader

    class RandomData(BaseDataLoader):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            pass

        def __init__(self, config: Any, *, seq_len: int, local_batch_size: int, **_: Any) -> None:
            self.shape = (local_batch_size, seq_len)

        def __iter__(self) -> Any:
            ids = torch.randint(0, 2048, self.shape, generator=torch.Generator().manual_seed(1))
            positions = torch.arange(self.shape[1]).expand(self.shape)
            while True:
                yield {"input": ids, "positions": positions}, ids.roll(-1, 1)

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: Any) -> None: ...

    return RandomData.Config()


def _no_tokenizer() -> Any:
    from dataclasses import dataclass

    from torchtitan.components.tokenizer import BaseTokenizer

    class NoTokenizer(BaseTokenizer):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):
            pass

        def __init__(self, config: Any, **_: Any) -> None:
            super().__init__()

        def encode(self, *_: Any, **__: Any) -> list[int]:
            return []

        def decode(self, *_: Any, **__: Any) -> str:
            return ""

        def get_vocab_size(self) -> int:
            return 2048

    return NoTokenizer.Config()
