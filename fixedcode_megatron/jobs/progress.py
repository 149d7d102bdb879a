"""Turns the log of a training program into a line that a newcomer understands."""

from __future__ import annotations

import re
import shutil
import time
from typing import TextIO

_STEP = re.compile(r"iteration +(\d+)/.*\| lm loss: (\S+) .*tokens per second per GPU: (\S+)")
_EVALUATION = re.compile(r"validation loss at iteration (\d+) \| lm loss value: (\S+)")


class TrainingView:
    """Progress of the models, one after the other.

    On a terminal one line is kept up to date, and a line stays for each evaluation; elsewhere only
    the latter are written.

    Parameters
    ----------
    stream
        Where to write.
    total_iterations
        Iterations of all models that are still to be trained.
    """

    def __init__(self, stream: TextIO, total_iterations: int) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._left = total_iterations
        self._done_before = 0.0  # seconds that the models before this one took
        self._iterations_before = 0
        self._width = 0

    def start(self, title: str, done: int, train_iters: int) -> None:
        """Begin a model of which `done` iterations were trained earlier."""
        self._title, self._first, self._end = title, done, train_iters
        self._iteration = done
        self._started = time.monotonic()
        self._loss = self._validation = self._speed = ""
        self._write(self._line(), stays=not self._live)

    def feed(self, line: str) -> bool:
        """Take one line of the training log; returns whether it was about progress."""
        if found := _STEP.search(line):
            self._iteration = int(found[1])
            self._loss = f"loss {float(found[2]):.3f}"
            self._speed = f"{float(found[3]):,.0f} tokens/s"
            self._write(self._line())
        elif found := _EVALUATION.search(line):
            self._iteration = int(found[1])
            self._validation = f"validation {float(found[2]):.3f}"
            self._write(self._line(), stays=True)
        return found is not None

    def finish(self) -> None:
        """End the line of the present model."""
        self._done_before += time.monotonic() - self._started
        self._iterations_before += self._iteration - self._first
        if self._live and self._width:
            self._write("", stays=False)

    def _line(self) -> str:
        seconds = time.monotonic() - self._started
        iterations = self._iterations_before + self._iteration - self._first
        times = f"{clock(seconds)} so far"
        if self._iteration > self._first:
            pace = (self._done_before + seconds) / iterations
            left = clock(pace * (self._end - self._iteration))
            times += f", {left} left ({clock(pace * max(0, self._left - iterations))} for all)"
        numbers = filter(None, (self._loss, self._validation, self._speed))
        place = f"{self._title} {self._iteration:>4}/{self._end}"
        return " | ".join(["  " + place, times, *numbers])

    def _write(self, text: str, *, stays: bool = False) -> None:
        if self._live:
            # A line that wraps could not be written over.
            text = text[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + text.ljust(self._width) + ("\n" if stays else ""))
            self._width = 0 if stays else len(text)
        elif stays:
            self._stream.write(text + "\n")
        self._stream.flush()


def clock(seconds: float) -> str:
    """Minutes and seconds, as 2:05."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
