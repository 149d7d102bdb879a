"""What a rank is doing right now, for the hang watch and for traces."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

DATA = "data"
FORWARD_BACKWARD = "forward-backward"
OPTIMIZER = "optimizer"
EVALUATION = "evaluation"
SAVE = "save"
CAPTURE = "recording CUDA graphs"
BETWEEN = "between steps"


class Phases:
    """The phase this rank is in; each change of it is a sign of life.

    Attributes
    ----------
    current
        Name of the phase.
    iteration
        The iteration under way, counted from 1 as log lines count.
    changed
        `time.monotonic()` of the last change.
    record_functions, nvtx
        Whether phases appear as ranges in torch.profiler's traces, and in those of nsys.
    """

    def __init__(self) -> None:
        self.current = BETWEEN
        self.iteration = 0
        self.changed = time.monotonic()
        self.record_functions = False
        self.nvtx = False

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Be in phase `name` inside the context, and in the one before again after it.

        A phase that ends by an exception stays the current one, so that a message can name it.
        """
        outer = self.current
        self._enter(name)
        with self._range(name):
            yield
        self._enter(outer)

    def _enter(self, name: str) -> None:
        self.current, self.changed = name, time.monotonic()

    @contextlib.contextmanager
    def _range(self, name: str) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self.record_functions:
                stack.enter_context(torch.profiler.record_function(name))
            if self.nvtx:
                torch.cuda.nvtx.range_push(name)
                stack.callback(torch.cuda.nvtx.range_pop)
            yield

    def __str__(self) -> str:
        return f"iteration {self.iteration}, phase {self.current}"
