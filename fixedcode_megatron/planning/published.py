"""Published throughputs of Megatron-LM and NeMo beside the planner's predictions.

Only rows whose source states model, GPUs, batch sizes, sequence length and layout. Two things they
do not state were set as the programs' defaults are: FP32 gradients, and no recompute in the FP8
rows. `hardware.Efficiency` was chosen to fit these rows as a whole.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from fixedcode_megatron.config import derive
from fixedcode_megatron.config.cli import read
from fixedcode_megatron.errors import UserError
from fixedcode_megatron.planning.hardware import GPUS
from fixedcode_megatron.planning.rank import rank_shape
from fixedcode_megatron.planning.timing import StepModel

_KORTHIKANTI = "Korthikanti et al. 2022 (arXiv 2205.05198), table 5"
_NEMO = "NeMo framework, performance benchmarks, container 24.07"
_BRIDGE = "Megatron Bridge, performance summary, container 25.09"
_GPT = "--position-embedding-type rope --normalization LayerNorm --vocab-size 51200"
_LLAMA = "--swiglu --normalization RMSNorm --disable-bias-linear"
_MODELS = {  # layers, width, heads, query groups, MLP width, other flags
    "GPT 5B": (24, 4096, 32, 32, 16384, _GPT),
    "GPT 20B": (44, 6144, 48, 48, 24576, _GPT),
    "GPT 22B": (48, 6144, 64, 64, 24576, _GPT),
    "GPT 175B": (96, 12288, 96, 96, 49152, _GPT),
    "GPT 530B": (105, 20480, 128, 128, 81920, _GPT),
    "GPT 1T": (128, 25600, 160, 160, 102400, _GPT),
    "Llama 2 7B": (32, 4096, 32, 32, 11008, f"{_LLAMA} --vocab-size 32000"),
    "Llama 2 13B": (40, 5120, 40, 40, 13824, f"{_LLAMA} --vocab-size 32000"),
    "Llama 2 70B": (80, 8192, 64, 8, 28672, f"{_LLAMA} --vocab-size 32000"),
    "Llama 3 70B": (80, 8192, 64, 8, 28672, f"{_LLAMA} --vocab-size 128256"),
}


@dataclass(frozen=True, kw_only=True)
class Published:
    """One published measurement.

    Attributes
    ----------
    step
        Seconds of a step; where the source gives tokens per second and GPU, worked out from it.
    flash_attention
        False for the measurements of 2022, which wrote the scores to memory.
    """

    model: str
    gpu: str
    gpus: int
    precision: str
    tp: int
    pp: int
    vp: int
    micro_batch: int
    batch: int
    seq_length: int
    recompute: str
    step: float
    source: str

    @property
    def flash_attention(self) -> bool:
        return self.source != _KORTHIKANTI

    @functools.cached_property
    def predicted(self) -> float:
        """Seconds of a step by the planner."""
        cfg, problems = read(self._flags())
        if problems:
            raise UserError("; ".join(problems))
        derive.fill(cfg, self.gpus)
        last = rank_shape(cfg, self.gpus, self.pp - 1)
        model = StepModel(last, GPUS[self.gpu], flash_attention=self.flash_attention)
        return model.step_time().total

    @property
    def error(self) -> float:
        """Predicted over published, minus 1."""
        return self.predicted / self.step - 1

    def _flags(self) -> list[str]:
        layers, width, heads, groups, mlp, others = _MODELS[self.model]
        text = (
            f"--num-layers {layers} --hidden-size {width} --num-attention-heads {heads} "
            f"--num-query-groups {groups} --ffn-hidden-size {mlp} {others} "
            f"--seq-length {self.seq_length} --micro-batch-size {self.micro_batch} "
            f"--global-batch-size {self.batch} --tensor-model-parallel-size {self.tp} "
            f"--pipeline-model-parallel-size {self.pp} --input-interface learned --bf16 "
            "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
        )
        if self.vp > 1:
            text += f" --virtual-pipeline-model-parallel-size {self.vp}"
        if self.tp > 1:
            text += " --sequence-parallel"
        if self.recompute == "full":
            text += " --recompute-granularity full --recompute-method uniform"
        elif self.recompute == "selective":
            text += " --recompute-granularity selective"
        if self.precision == "fp8":
            text += " --fp8-format hybrid"
        return text.split()


def _a100(
    model: str, gpus: int, pp: int, vp: int, micro: int, batch: int, **steps: float
) -> list[Published]:
    return [
        Published(
            model=model,
            gpu="a100",
            gpus=gpus,
            precision="fp16",
            tp=8,
            pp=pp,
            vp=vp,
            micro_batch=micro,
            batch=batch,
            seq_length=2048,
            recompute=recompute,
            step=step,
            source=_KORTHIKANTI,
        )
        for recompute, step in steps.items()
    ]


def _h100(
    model: str,
    gpus: int,
    batch: int,
    micro: int,
    seq_length: int,
    layout: tuple[int, int, int],
    tokens_per_second: float,
    source: str = _NEMO,
) -> Published:
    tp, pp, vp = layout
    step = batch * seq_length / gpus / tokens_per_second
    return Published(
        model=model,
        gpu="h100",
        gpus=gpus,
        precision="fp8",
        tp=tp,
        pp=pp,
        vp=vp,
        micro_batch=micro,
        batch=batch,
        seq_length=seq_length,
        recompute="none",
        step=step,
        source=source,
    )


PUBLISHED: list[Published] = [
    *_a100("GPT 22B", 8, 1, 1, 4, 4, full=1.42, selective=1.10),
    *_a100("GPT 175B", 64, 8, 3, 1, 64, full=18.13, selective=13.75),
    *_a100("GPT 530B", 280, 35, 3, 1, 280, full=49.05, selective=37.83),
    *_a100("GPT 1T", 512, 64, 1, 1, 512, full=94.42, selective=71.49),
    _h100("GPT 5B", 64, 2048, 4, 2048, (1, 1, 1), 23574),
    _h100("GPT 20B", 64, 256, 2, 2048, (2, 1, 1), 5894),
    _h100("GPT 175B", 128, 256, 1, 2048, (4, 8, 6), 745),
    _h100("GPT 175B", 512, 2048, 2, 2048, (4, 8, 6), 832),
    _h100("Llama 2 7B", 8, 128, 1, 4096, (1, 1, 1), 16634),
    _h100("Llama 2 13B", 16, 128, 1, 4096, (1, 4, 10), 8715),
    _h100("Llama 2 70B", 64, 128, 1, 4096, (4, 4, 20), 1717),
    _h100("Llama 3 70B", 64, 128, 1, 8192, (4, 8, 5), 1619, _BRIDGE),
]


def table() -> str:
    """Published and predicted step times, one row each."""
    lines = [
        f"{'model':<13}{'GPUs':>5}{'':>6}{'':>6}{'TP':>4}{'PP':>4}{'VP':>4}{'MBS':>5}{'GBS':>6}"
        f"{'recompute':>11}{'published':>11}{'predicted':>11}{'error':>8}  source"
    ]
    for row in PUBLISHED:
        lines.append(
            f"{row.model:<13}{row.gpus:>5}{row.gpu:>6}{row.precision:>6}{row.tp:>4}{row.pp:>4}"
            f"{row.vp:>4}{row.micro_batch:>5}{row.batch:>6}{row.recompute:>11}{row.step:>10.2f}s"
            f"{row.predicted:>10.2f}s{row.error:>8.0%}  {row.source}"
        )
    return "\n".join(lines)
