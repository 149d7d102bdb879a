"""Several short documents in one sample: which go together, to leave little room empty."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Put documents into samples: the longest first, each where it leaves the least room.

    Parameters
    ----------
    lengths
        Length of each document, 1 to `capacity`.
    capacity
        Length of a sample.

    Returns
    -------
    list of list of int
        The documents of each sample, by number, in ascending order; samples by their first one.
    """
    room: dict[int, list[list[int]]] = {}  # samples by the room they have
    rooms: list[int] = []  # its keys, sorted
    for document in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[document]
        assert 1 <= length <= capacity
        place = bisect_left(rooms, length)
        if place < len(rooms):
            left = rooms[place]
            sample = room[left].pop()
            if not room[left]:
                del room[left], rooms[place]
        else:
            left, sample = capacity, []
        sample.append(document)
        left -= length
        if left not in room:
            room[left] = []
            insort(rooms, left)
        room[left].append(sample)
    return sorted(sorted(sample) for samples in room.values() for sample in samples)
