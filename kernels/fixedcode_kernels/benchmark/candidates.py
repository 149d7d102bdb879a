"""What is measured: the op on each backend, a fill, and the embeddings of torch and Megatron."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fixedcode_kernels import CodeSpec, backends, token_code_embedding, use_backend
from fixedcode_kernels.benchmark.timing import Candidate, outputs_beyond_cache


class Size(NamedTuple):
    """One benchmark size: ``tokens = batch * length`` ids of a vocabulary, h wide."""

    batch: int
    length: int
    hidden: int
    vocab: int
    dtype: torch.dtype

    @property
    def output_bytes(self) -> int:
        return self.batch * self.length * self.hidden * self.dtype.itemsize


def codes(vocab: int) -> dict[str, CodeSpec]:
    """Return the canonical code and one with a dense matrix (its invertibility costs no time)."""
    k = (vocab - 1).bit_length()
    generator = random.Random(12345)
    masks = tuple(generator.getrandbits(k) for _ in range(k))
    return {
        "binary": CodeSpec(vocab_size=vocab, num_bits=k),
        "gf2": CodeSpec(vocab_size=vocab, num_bits=k, row_masks=masks),
    }


def usable_backends(device: torch.device) -> list[str]:
    """Return the names of the backends that work on `device`, the one in use first."""
    return [
        backend.name
        for backend in backends()
        if backend.device == device.type and (backend.chosen or backend.reason.startswith("works"))
    ]


class Suite:
    """Candidates for one size, and the bytes that each must move."""

    def __init__(self, size: Size, device: torch.device, cache_bytes: int) -> None:
        self.size, self.device = size, device
        generator = torch.Generator().manual_seed(1)
        shape = (size.batch, size.length)
        self.ids = torch.randint(0, size.vocab, shape, generator=generator).to(device)
        out_shape = (size.length, size.batch, size.hidden)
        self.outputs = outputs_beyond_cache(out_shape, size.dtype, device, cache_bytes)
        self.gradient = torch.randn(out_shape, generator=generator).to(device, size.dtype)
        self.candidates: dict[str, Candidate] = {}
        self.bytes: dict[str, int] = {}
        self._add("fill", lambda turn: self.output(turn).fill_(1.0), size.output_bytes)

    def output(self, turn: int) -> Tensor:
        return self.outputs[turn % len(self.outputs)]

    def _add(self, name: str, candidate: Candidate, must_move: int) -> None:
        self.candidates[name], self.bytes[name] = candidate, must_move

    def add_op(self) -> None:
        """The op into given outputs on every backend, and once with an output of its own."""
        must_move = self.size.output_bytes + self.ids.nbytes
        names = usable_backends(self.device)
        for kind, code in codes(self.size.vocab).items():
            for backend in names:
                self._add(f"op {kind} ({backend})", self._op(code, backend), must_move)
        binary = codes(self.size.vocab)["binary"]
        self._add("op binary, fresh output", self._op(binary, names[0], False), must_move)

    def _op(self, code: CodeSpec, backend: str, given: bool = True) -> Candidate:
        def run(turn: int) -> object:
            with use_backend(backend):
                return token_code_embedding(
                    self.ids,
                    code,
                    self.size.hidden,
                    dtype=self.size.dtype,
                    out=self.output(turn) if given else None,
                )

        return run

    def add_torch_embedding(self) -> None:
        """nn.functional.embedding to [s, b, h]: forward; forward and backward to main_grad."""
        size = self.size
        weight = torch.nn.Parameter(torch.randn(size.vocab, size.hidden, device=self.device))
        weight.data = weight.data.to(size.dtype)
        main_grad = torch.zeros(size.vocab, size.hidden, device=self.device)
        self._add_learned(
            "torch embedding",
            weight,
            main_grad,
            lambda: functional.embedding(self.ids, weight).transpose(0, 1).contiguous(),
        )

    def add_megatron_embedding(self) -> str | None:
        """Megatron-Core's VocabParallelEmbedding, the same two; returns why it is left out."""
        try:
            module = _megatron_embedding(self.size, self.device)
        except Exception as error:  # an optional rival: whatever it lacks is reported
            return f"{type(error).__name__}: {error}".splitlines()[0]
        main_grad = torch.zeros(self.size.vocab, self.size.hidden, device=self.device)
        self._add_learned(
            "megatron-core embedding",
            module.weight,
            main_grad,
            lambda: module(self.ids).transpose(0, 1).contiguous(),
        )
        return None

    def _add_learned(
        self,
        name: str,
        weight: torch.nn.Parameter,
        main_grad: Tensor,
        forward: Callable[[], Tensor],
    ) -> None:
        def forward_only(turn: int) -> object:
            with torch.no_grad():
                return forward()

        def forward_backward(turn: int) -> object:
            forward().backward(self.gradient)
            assert weight.grad is not None
            main_grad.add_(weight.grad)  # what DDP's hook does with FP32 gradient buffers
            weight.grad = None
            return None

        rows = int(self.ids.unique().numel()) * self.size.hidden
        once = 2 * self.size.output_bytes + self.ids.nbytes  # read the rows, write the output
        both = once + self.size.output_bytes + 8 * rows  # read dY; main_grad in and out
        self._add(f"{name}, forward", forward_only, once)
        self._add(f"{name}, forward + backward to FP32 main grad", forward_backward, both)


def _megatron_embedding(size: Size, device: torch.device) -> Any:
    """Return a VocabParallelEmbedding in a process group of one."""
    import torch.distributed as dist
    from megatron.core import ModelParallelConfig, parallel_state
    from megatron.core.tensor_parallel import VocabParallelEmbedding

    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = os.path.join(tempfile.mkdtemp(prefix="fixedcode-benchmark-"), "store")
        dist.init_process_group(backend, init_method=f"file://{store}", rank=0, world_size=1)
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel()
    config = ModelParallelConfig(use_cpu_initialization=True, params_dtype=size.dtype)
    module = VocabParallelEmbedding(
        size.vocab, size.hidden, init_method=torch.nn.init.normal_, config=config
    )
    return module.to(device)
