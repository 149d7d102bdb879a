"""CUDA graphs on a CPU: what runs inside `torch.cuda.graph` is recorded, `replay` runs it again.

Stands in for the CUDA runtime alone. An operation is recorded with the very tensors it read and
wrote, as a graph keeps addresses; a replay runs it again and writes to the same tensors. As on a
GPU, a value that goes to the host cannot be recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves

GRAPHS: list[Graph] = []
"""All graphs made in this process."""


class Graph:
    """One recording, with how often it was replayed."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self.generators: list[Any] = []
        self.replays = 0
        self.was_reset = False
        GRAPHS.append(self)

    def register_generator_state(self, generator: torch.Generator) -> None:
        assert isinstance(generator, torch.Generator)
        self.generators.append(generator)

    def replay(self) -> None:
        assert self.operations and not self.was_reset
        self.replays += 1
        with torch.no_grad():
            for function, args, kwargs, written in self.operations:
                for old, new in zip(written, tree_leaves(function(*args, **kwargs)), strict=True):
                    if old is not None:
                        old.copy_(new)
                    elif isinstance(new, torch.ScriptObject):
                        new.wait()  # a collective that is under way

    def reset(self) -> None:
        self.was_reset, self.operations = True, []


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "_local_scalar_dense" in str(func) or "nonzero" in str(func):
            raise RuntimeError(f"{func} waits for the device: it cannot be recorded")
        outputs = func(*args, **kwargs)
        read = {_storage(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        leaves = tree_flatten(outputs)[0]
        written = [  # a view follows what it is a view of; in-place operations write by themselves
            x if isinstance(x, torch.Tensor) and _storage(x) not in read else None for x in leaves
        ]
        self.graph.operations.append((func, args, kwargs, written))
        return outputs


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


@contextlib.contextmanager
def _record(graph: Graph, **_options: Any) -> Iterator[None]:
    with _Recorder(graph):
        yield


class SafeGenerator(torch.Generator):
    """A CPU generator with the methods that only CUDA's have."""

    def clone_state(self) -> SafeGenerator:
        other = SafeGenerator()
        other.set_state(self.get_state())
        return other

    def graphsafe_get_state(self) -> torch.Generator:
        return self

    def graphsafe_set_state(self, other: torch.Generator) -> None:
        if other is not self:
            self.set_state(other.get_state())


class _Generators(tuple):
    def __getitem__(self, _index: Any) -> Any:
        return self.one  # type: ignore[attr-defined]


def install() -> None:
    """Put these in the place of CUDA's; after `cpu_platform.install()`."""
    torch.cuda.CUDAGraph = Graph  # type: ignore[misc,assignment]
    torch.cuda.graph = _record  # type: ignore[misc,assignment]
    wait = torch.distributed.Work.wait

    def wait_unrecorded(work: Any, *timeout: Any) -> Any:
        with _disable_current_modes():  # gloo copies from buffers of its own
            return wait(work, *timeout)

    torch.distributed.Work.wait = wait_unrecorded  # type: ignore[method-assign]
    generators = _Generators((0,))
    generators.one = SafeGenerator()  # type: ignore[attr-defined]
    torch.cuda.default_generators = generators  # type: ignore[assignment]
    import transformer_engine.pytorch.graph as graph

    graph.graph_pool_handle = lambda: None
