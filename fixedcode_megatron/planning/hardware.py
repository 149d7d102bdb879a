"""What the predictions assume of a GPU and of the network: data sheets, and a few efficiencies.

The efficiencies are the only fitted numbers. `tests/unit/test_planning_published.py` compares what
comes out with published throughput tables; docs/scaling.md shows the errors.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One kind of GPU.

    Attributes
    ----------
    flops, flops_fp8
        Dense peak at 16 and at 8 bits, FLOP/s; None where it has no 8-bit units.
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
    flops: float
    flops_fp8: float | None
    memory: int
    bandwidth: float
    link: float
    network: float
    price: float
    per_node: int = 8


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="a100",
            flops=312e12,
            flops_fp8=None,
            memory=80 * GIB,
            bandwidth=2.04e12,
            link=300e9,
            network=25e9,
            price=1.5,
        ),
        Gpu(
            name="h100",
            flops=989.4e12,
            flops_fp8=1978.9e12,
            memory=80 * GIB,
            bandwidth=3.35e12,
            link=450e9,
            network=50e9,
            price=2.5,
        ),
        Gpu(
            name="h200",
            flops=989.4e12,
            flops_fp8=1978.9e12,
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
    """Shares of the peak that large operations reach (fitted, see the module's docstring).

    Attributes
    ----------
    matmul, matmul_fp8, attention
        Of the peak FLOP/s.
    memory, link
        Of the memory's and of the links' bandwidth.
    latency
        Seconds that a collective takes whatever its size, per doubling of the ranks.
    kernel
        Seconds between two kernels that nothing hides.
    reserved
        Share of the memory that CUDA, NCCL, cuBLAS and fragmentation take.
    """

    matmul: float = 0.80
    matmul_fp8: float = 0.70
    attention: float = 0.55
    memory: float = 0.85
    link: float = 0.75
    latency: float = 4e-6
    kernel: float = 2e-6
    reserved: float = 0.08


DEFAULT_EFFICIENCY = Efficiency()
