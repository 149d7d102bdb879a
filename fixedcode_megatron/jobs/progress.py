"""Turns the log of a training program into a line that a newcomer understands."""

from __future__ import annotations

import re
import shutil
import threading
import time
from typing import TextIO

_STEP = re.compile(r"iteration +(\d+)/.*\| lm loss: (\S+) .*tokens per second per GPU: (\S+)")
_EVALUATION = re.compile(r"validation loss at iteration (\d+) \| lm loss value: (\S+)")


class TrainingView:
    """Progress of the models, one after the other or several at once.

    On a terminal one line is kept up to date, and a line stays for each evaluation; elsewhere only
    the latter are written.

    Parameters
    ----------
    stream
        Where to write.
    total_iterations
        Iterations of all models that are still to be trained.

    Attributes
    ----------
    live
        Whether a line can be kept up to date.
    """

    def __init__(self, stream: TextIO, total_iterations: int) -> None:
        self._stream = stream
        self.live = stream.isatty()
        self._total = total_iterations
        self._trained = 0
        self._started = time.monotonic()
        self._width = 0
        self._writing = threading.Lock()

    def start(self, title: str, done: int, train_iters: int) -> ModelView:
        """Begin a model of which `done` iterations were trained earlier."""
        return ModelView(self, title, done, train_iters)

    def trained(self, iterations: int) -> None:
        """Count iterations of any model."""
        with self._writing:
            self._trained += iterations

    def time_left(self) -> str:
        """For all models, at the pace so far."""
        pace = (time.monotonic() - self._started) / max(1, self._trained)
        return clock(pace * max(0, self._total - self._trained))

    def write(self, text: str, *, stays: bool = False) -> None:
        """Show a line, until the next one or for good."""
        with self._writing:
            if self.live:
                # A line that wraps could not be written over.
                text = text[: shutil.get_terminal_size().columns - 1]
                self._stream.write("\r" + text.ljust(self._width) + ("\n" if stays else ""))
                self._width = 0 if stays else len(text)
            elif stays:
                self._stream.write(text + "\n")
            self._stream.flush()

    def clear(self) -> None:
        """Take away the line that is kept up to date."""
        if self.live and self._width:
            self.write("")


class ModelView:
    """Progress of one model, from the lines of its log."""

    def __init__(self, view: TrainingView, title: str, done: int, train_iters: int) -> None:
        self._view = view
        self._title, self._first, self._end = title, done, train_iters
        self._iteration = done
        self._started = time.monotonic()
        self._loss = self._validation = self._speed = ""
        view.write(self._line(), stays=not view.live)

    def feed(self, line: str) -> bool:
        """Take one line of the training log; returns whether it was about progress."""
        if found := _STEP.search(line):
            self._advance(int(found[1]))
            self._loss = f"loss {float(found[2]):.3f}"
            self._speed = f"{float(found[3]):,.0f} tokens/s"
            self._view.write(self._line())
        elif found := _EVALUATION.search(line):
            self._advance(int(found[1]))
            self._validation = f"validation {float(found[2]):.3f}"
            self._view.write(self._line(), stays=True)
        return found is not None

    def _advance(self, iteration: int) -> None:
        self._view.trained(iteration - self._iteration)
        self._iteration = iteration

    def _line(self) -> str:
        seconds = time.monotonic() - self._started
        times = f"{clock(seconds)} so far"
        if done := self._iteration - self._first:
            left = clock(seconds / done * (self._end - self._iteration))
            times += f", {left} left ({self._view.time_left()} for all)"
        numbers = filter(None, (self._loss, self._validation, self._speed))
        place = f"{self._title} {self._iteration:>4}/{self._end}"
        return " | ".join(["  " + place, times, *numbers])


def clock(seconds: float) -> str:
    """Minutes and seconds, as 2:05."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
