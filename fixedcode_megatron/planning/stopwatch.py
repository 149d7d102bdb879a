"""Where the time of a training step goes: forward, backward, reduction and update, by part.

Each boundary waits for the device, so that an instrumented step is a little slower than a plain
one: it gives shares, not the speed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fixedcode_megatron.training.trainer import Trainer

PARTS = ("input interface", "layers", "head and loss", "gradient reduction", "optimizer", "other")


class Stopwatch:
    """Adds the time since the last mark to the part that has just ended."""

    def __init__(self, synchronize: Callable[[], None], clock: Callable[[], float]) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._synchronize, self._clock = synchronize, clock
        self._last = clock()
        self._running = "other"

    def mark(self, ended: str | None = None, then: str = "other") -> None:
        """Part `ended` (else the one announced by the last `then`) ends here; `then` begins."""
        self._synchronize()
        now = self._clock()
        self.seconds[ended or self._running] += now - self._last
        self._last, self._running = now, then


@contextlib.contextmanager
def watch_parts(
    trainer: Trainer, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Stopwatch]:
    """Time the parts of the steps inside the context; for one model chunk (no interleaving)."""
    watch = Stopwatch(trainer.runtime.synchronize, clock)
    model = _bare(trainer.models[0])
    config, optimizer = trainer.config, trainer.optimizer
    finalize, step = config.finalize_model_grads_func, optimizer.step

    def output_of(part: str, backward_before: str, backward_after: str) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            watch.mark(part)
            tensor = output[0] if isinstance(output, tuple) else output
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _g: watch.mark(backward_before, then=backward_after))

        return hook

    def timed(function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            watch.mark()
            result = function(*args, **kwargs)
            watch.mark(part)
            return result

        return wrapper

    def begins(_module: Any, _inputs: Any) -> None:
        watch.mark()  # whatever the backward pass before did last

    handles = [model.register_forward_pre_hook(begins)]
    if getattr(model, "embedding", None) is not None:
        handles.append(model.embedding.register_forward_pre_hook(begins))
        made = output_of("input interface", "layers", "input interface")
        handles.append(model.embedding.register_forward_hook(made))
    handles.append(model.decoder.register_forward_pre_hook(begins))
    handles.append(
        model.decoder.register_forward_hook(output_of("layers", "head and loss", "layers"))
    )
    handles.append(
        model.register_forward_hook(lambda *_: watch.mark("head and loss", then="other"))
    )
    config.finalize_model_grads_func = timed(finalize, "gradient reduction")
    optimizer.step = timed(step, "optimizer")
    try:
        yield watch
        watch.mark()
    finally:
        for handle in handles:
            handle.remove()
        config.finalize_model_grads_func = finalize
        del optimizer.step


def _bare(model: Any) -> Any:
    while not hasattr(model, "decoder"):
        model = model.module
    return model


def peak_bytes(device: torch.device, step: Callable[[], None]) -> int:
    """Most bytes allocated at once while `step` runs, above what was allocated before it."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    assert profile.profiler is not None
    events: Any = profile.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
