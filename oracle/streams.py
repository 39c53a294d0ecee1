"""Two streams of work that wait for one another and slow one another down: kernels, and transfers beside them.

Each stream does its items in order, and an item may have to wait until so many of the other stream have ended. While
both streams work, the one at a kernel takes `Factors.kernels` times as long as alone and the one at a transfer
`Factors.transfers` times; while the other waits or has ended, each works at its own speed. So a kernel of c and a
transfer of m seconds that start together end after m + f c (1 - 1 / g) if the kernel ends first (f c <= g m), else
after c + g m (1 - 1 / f). f and g are measured (`calibration.link_overlap`); processors and memory that both want are
shared out in the same way all the time, which is what a mean factor of a whole collective says, no more.

The last axis of every array of seconds holds independent entries, as in `oracle.schedules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.estimate import Floats, Ints

_Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Factors:
    """By how much the two streams stretch one another, at least 1; one number, or one for each entry."""

    kernels: Floats
    transfers: Floats


@dataclass(frozen=True, eq=False)
class Item:
    """Work of one stream.

    Args:
        seconds: it takes alone.
        after: so many items of the other stream must have ended before.
    """

    seconds: Floats
    after: int = 0


def ends_of(
    kernels: Sequence[Item], transfers: Sequence[Item], factors: Factors | None = None
) -> tuple[list[Floats], list[Floats]]:
    """When every item of both streams ends, in seconds from the start of the first.

    Args:
        kernels, transfers: in their order; no two may wait for each other.
        factors: None where the streams do not meet.

    >>> work = [Item(np.array(2.0))], [Item(np.array(1.0))]
    >>> [float(ends[0]) for ends in ends_of(*work, Factors(np.array(1.25), np.array(1.5)))]
    [2.3, 1.5]
    """
    return _apart(kernels, transfers) if factors is None else _meeting(kernels, transfers, factors)


def _apart(kernels: Sequence[Item], transfers: Sequence[Item]) -> tuple[list[Floats], list[Floats]]:
    ends: tuple[list[Floats], list[Floats]] = ([], [])
    for _ in range(len(kernels) + len(transfers)):
        for items, own, other in ((kernels, *ends), (transfers, ends[1], ends[0])):
            if len(own) < len(items) and (item := items[len(own)]).after <= len(other):
                own.append(_latest(own[-1:], other[item.after - 1 : item.after]) + item.seconds)
    return ends


def _latest(*ends: list[Floats]) -> Floats:
    latest: Floats = np.zeros(())
    for end in ends:
        latest = np.maximum(latest, end[0]) if end else latest
    return latest


def _meeting(kernels: Sequence[Item], transfers: Sequence[Item], factors: Factors) -> tuple[list[Floats], list[Floats]]:
    """Step from one end of an item to the next, every entry for itself: each step ends at least one item of each."""
    shapes = [item.seconds.shape for item in (*kernels, *transfers)]
    shape = np.broadcast_shapes(factors.kernels.shape, factors.transfers.shape, *shapes)
    entries = int(np.prod(shape, dtype=int))
    slow = [np.broadcast_to(factor, shape).ravel() for factor in (factors.kernels, factors.transfers)]
    streams = [_Stream(items, shape) for items in (kernels, transfers)]
    now = np.zeros(entries)
    for _ in range(len(kernels) + len(transfers)):
        ready = [stream.ready(other.done) for stream, other in zip(streams, streams[::-1], strict=True)]
        both = ready[0] & ready[1]
        rate = [np.where(both, factor, 1.0) for factor in slow]
        needed = [
            np.where(can, stream.left * each, np.inf) for can, stream, each in zip(ready, streams, rate, strict=True)
        ]
        span = np.minimum(*needed)
        span[np.isinf(span)] = 0.0
        now += span
        for can, stream, each, need in zip(ready, streams, rate, needed, strict=True):
            stream.left[can] -= (span / each)[can]
            stream.end(can & (need <= span), now)
    first, second = ([row.reshape(shape) for row in stream.ends] for stream in streams)
    return first, second


class _Stream:
    """Where each entry stands in one stream: items done, and seconds alone that are left of the next."""

    def __init__(self, items: Sequence[Item], shape: tuple[int, ...]) -> None:
        entries = int(np.prod(shape, dtype=int))
        # One item more than there are, which nobody waits for, so that what has ended everything needs no exception.
        self._seconds = np.zeros((len(items) + 1, entries))
        for row, item in zip(self._seconds, items, strict=False):
            row[:] = np.broadcast_to(item.seconds, shape).ravel()
        self._after = np.array([*(item.after for item in items), np.iinfo(np.int64).max])
        self._columns = np.arange(entries)
        self.done = np.zeros(entries, dtype=np.int64)
        self.left = self._seconds[0].copy()
        self.ends = np.zeros((len(items), entries))

    def ready(self, others_done: Ints) -> _Flags:
        """Which entries can work at their next item."""
        can: _Flags = self._after[self.done] <= others_done
        return can

    def end(self, entries: _Flags, now: Floats) -> None:
        """Some entries have ended their item."""
        columns = self._columns[entries]
        self.ends[self.done[columns], columns] = now[columns]
        self.done[columns] += 1
        self.left[columns] = self._seconds[self.done[columns], columns]
