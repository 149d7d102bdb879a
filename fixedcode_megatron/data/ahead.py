"""Read several sources at once, each in a thread, and yield their items one source after the other.

For work that leaves Python's lock, such as decompression.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")
_HELD = 3  # items of one source that wait to be taken


def read_ahead(sources: Iterable[Iterator[_T]], threads: int) -> Iterator[_T]:
    """Items of all sources, in order; up to `threads` sources are read at the same time.

    What a source raises is raised where its next item would have come.
    """
    stopped = threading.Event()
    coming = iter(sources)
    readers: deque[queue.Queue] = deque()
    try:
        while True:
            while len(readers) < threads and (source := next(coming, None)) is not None:
                readers.append(_start(source, stopped))
            if not readers:
                return
            while True:
                kind, value = readers[0].get()
                if kind == "error":
                    raise value
                if kind == "end":
                    break
                yield value
            readers.popleft()
    finally:
        stopped.set()


def _start(source: Iterator, stopped: threading.Event) -> queue.Queue:
    items: queue.Queue = queue.Queue(_HELD)

    def put(kind: str, value: Any = None) -> bool:
        while not stopped.is_set():
            try:
                items.put((kind, value), timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        try:
            for item in source:
                if not put("item", item):
                    return
            put("end")
        except BaseException as error:  # the reader of the queue is the one to fail
            put("error", error)

    threading.Thread(target=read, daemon=True).start()
    return items
