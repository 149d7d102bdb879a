"""What the predictions assume of a GPU and of the network: data sheets, and `Efficiency`.

`Efficiency` holds whatever is neither in a data sheet nor counted. `published` compares what comes
out with published throughput tables; docs/scaling.md shows the errors.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.training.peaks import BF16, FP8, peak_flops

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One kind of GPU.

    Attributes
    ----------
    name
        The table of peaks has it in capitals.
    memory
        Bytes of device memory.
    bandwidth
        Of that memory, bytes/s.
    link, network
        Bytes/s in each direction, per GPU: within a node, and between nodes.
    price
        Assumed US dollars an hour.
    per_node
        GPUs that share the faster link.
    """

    name: str
    memory: int
    bandwidth: float
    link: float
    network: float
    price: float
    per_node: int = 8

    def peak(self, *, fp8: bool = False) -> float:
        """Dense peak in FLOP/s at 16 bits or in FP8.

        Raises
        ------
        UserError
            For FP8 on a GPU that has none.
        """
        return _peak(self.name, FP8 if fp8 else BF16)


@functools.cache
def _peak(name: str, precision: str) -> float:
    peak = peak_flops(name.upper(), precision)
    if peak is None:
        raise UserError(
            f"--gpu {name} has no {precision.upper()} units, which --precision fp8_* and "
            "--fp8-format need; use --precision bf16, or --gpu h100"
        )
    return peak


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="a100",
            memory=80 * GIB,
            bandwidth=2.04e12,
            link=300e9,
            network=25e9,
            price=1.5,
        ),
        Gpu(
            name="h100",
            memory=80 * GIB,
            bandwidth=3.35e12,
            link=450e9,
            network=50e9,
            price=2.5,
        ),
        Gpu(
            name="h200",
            memory=141 * 10**9,
            bandwidth=4.8e12,
            link=450e9,
            network=50e9,
            price=3.0,
        ),
    )
}
"""SXM modules in eight-GPU nodes, one 200 (A100) or 400 Gb/s (H100, H200) adapter per GPU."""


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What data sheets do not say: chosen to fit published step times as a whole, or assumed.

    Attributes
    ----------
    matmul, matmul_fp8, attention
        Shares of the peak FLOP/s that large operations reach.
    memory, link
        Shares of the memory's and of the links' bandwidth.
    latency
        Seconds that a collective takes whatever its size, per doubling of the ranks.
    kernel
        Seconds between two kernels that nothing hides.
    score_passes
        Times that programs without flash attention move each score: mask, softmax, dropout, copies.
    logit_bytes
        Moved per logit by the head and the loss, besides the matrix products' own.
    shown_ring, shown_messages
        Shares of the ring of context parallelism, and of the messages of interleaved stages, that
        nothing hides (assumed: no published row shows them alone).
    reserved
        Share of the memory that CUDA, NCCL, cuBLAS and fragmentation take (assumed).
    """

    matmul: float = 0.80
    matmul_fp8: float = 0.70
    attention: float = 0.55
    memory: float = 0.85
    link: float = 0.75
    latency: float = 4e-6
    kernel: float = 2e-6
    score_passes: float = 9
    logit_bytes: float = 22
    shown_ring: float = 0.5
    shown_messages: float = 0.3
    reserved: float = 0.08


DEFAULT_EFFICIENCY = Efficiency()
