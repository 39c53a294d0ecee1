"""Samples of a CUDA stream in blocks: a hold in front, events between, and one wait for all of them.

A block is

    hold | event  calls of sample 1  event | event  calls of sample 2  event | ...

The hold keeps the stream back until the host has enqueued everything behind it, so that no gap between launches is
timed; NVIDIA/nvbench holds with a kernel that spins on a flag of the host (`profiler/raw/hold.cu`). A full queue would
block the host before it can let go, which is why a hold ends by itself after LONGEST_HOLD_S and says so; the block is
then thrown away and the next one is half as long, until the last of TRIES, which is taken as it is. Events are made
once and used again, and their times are read when the whole block has passed: nothing waits for the device between two
samples. The visit still asks for one sample at a time and gets the next of the block.

How long a block is grows from one sample, so that a rule that is content with few pays for few, and is bounded by
launches (a queue holds 1,024) and by time (what is left of a block when the rule stops is lost).

Nothing here touches CUDA itself: `profiler.backends.cuda` passes in what does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from profiler.backends.base import Sample
from profiler.backends.torch_device import Rotation
from profiler.micro.base import Run

LONGEST_HOLD_S = 0.5
"""After this a hold lets go by itself."""

MAX_CALLS = 256
"""Calls behind one hold: a call may launch several kernels, and a queue holds 1,024."""

MAX_BLOCK_S = 0.05
"""Device time of one block."""

MAX_BLOCK = 32
"""Samples of one block."""

TRIES = 4
"""Blocks that are tried before one is taken though its hold ended early."""


class Event(Protocol):
    """A point in a stream, as torch and CuPy have it."""

    def record(self) -> None:
        """Mark the point behind everything that was enqueued so far."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to another one."""


class Hold(Protocol):
    """What keeps a stream back."""

    def close(self, enqueue_s: float) -> None:
        """Hold what is enqueued from now on back; `enqueue_s` is what enqueueing will take, as far as is known."""

    def release(self) -> None:
        """Let go."""

    def failed(self) -> bool:
        """Whether the last hold had ended before it was released; asked when the device has passed it."""


@dataclass
class EventPool:
    """Pairs of events that are made when they are first needed, and used again.

    Args:
        make: a new event.
    """

    make: Callable[[], Event]
    pairs: list[tuple[Event, Event]] = field(default_factory=list)

    def take(self, count: int) -> Sequence[tuple[Event, Event]]:
        """The first `count` pairs; a pair must have been read before it is taken again."""
        while len(self.pairs) < count:
            self.pairs.append((self.make(), self.make()))
        return self.pairs[:count]


def block_size(taken: int, inner: int, call_s: float, most_calls: int = MAX_CALLS) -> int:
    """How many samples the next block holds.

    Args:
        taken: samples of this kind that were taken before: a block is no longer than all before it together.
        inner: calls in a sample.
        call_s: device seconds of one call, as far as is known.
        most_calls: calls that may stand behind one hold.

    >>> [block_size(n, 1, 1e-4) for n in (0, 1, 2, 4, 1000)], block_size(1000, 20, 1e-5), block_size(1000, 1, 0.02)
    ([1, 1, 2, 4, 32], 12, 2)
    """
    in_time = MAX_BLOCK_S / (inner * call_s) if call_s > 0 else MAX_BLOCK
    return max(1, min(taken, MAX_BLOCK, most_calls // inner, int(in_time)))


class QueuedKernel:
    """Closures timed on a stream, block by block.

    Args:
        runs: taken in turn.
        pool: of events of the stream.
        hold: keeps the stream back.
        clock: the host's clock, in seconds.
    """

    def __init__(self, runs: Sequence[Run], pool: EventPool, hold: Hold, clock: Callable[[], float]) -> None:
        self.rotation = Rotation(runs)
        self._pool, self._hold, self._clock = pool, hold, clock
        self._ready: deque[Sample] = deque()
        self._inner = 0
        self._taken = 0
        self._last: Sample | None = None
        self._most_calls = MAX_CALLS

    def sample(self, inner: int) -> Sample:
        """The next sample of `inner` calls; its host seconds are those of enqueueing, which nothing waits for."""
        if inner != self._inner:
            self._ready.clear()
            self._inner, self._taken = inner, 0
        if not self._ready:
            self._take_block()
        return self._ready.popleft()

    def _take_block(self) -> None:
        if self._last is None:
            # The first call loads its kernels, which waits for the device: a hold would be waited for in vain.
            self._last = self._block(1, held=False)[0]
        count = block_size(self._taken, self._inner, self._last.device_s, self._most_calls)
        samples = self._block(count, held=True)
        for _ in range(TRIES - 1):
            if not self._hold.failed():
                break
            count = max(1, count // 2)
            self._most_calls = count * self._inner
            samples = self._block(count, held=True)
        self._taken += len(samples)
        self._last = samples[-1]
        self._ready.extend(samples)

    def _block(self, count: int, *, held: bool) -> list[Sample]:
        pairs = self._pool.take(count)
        keep, hosts_s = self.rotation.keep, []
        if held:
            self._hold.close(count * self._inner * (self._last.host_s if self._last else 0.0))
        for start, end in pairs:
            runs = self.rotation.take(self._inner)
            start.record()
            begun_s = self._clock()
            for run in runs:
                keep.append(run())
            hosts_s.append(self._clock() - begun_s)
            end.record()
        if held:
            self._hold.release()
        pairs[-1][1].synchronize()
        return [
            Sample(start.elapsed_time(end) * 1e-3 / self._inner, host_s / self._inner)
            for (start, end), host_s in zip(pairs, hosts_s, strict=True)
        ]
