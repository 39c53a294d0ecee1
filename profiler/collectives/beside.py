"""A collective and a kernel at the same time: what each takes alone, and by how much they slow one another down.

A sample has four times, in seconds per call: the collective alone, the kernel alone, and both while they run together.
They are taken within a fraction of a second of one another, so that the drift of a machine cancels in their ratios,
and all ranks do the same at the same time: kernels alone run on all of them, as in a training step. The collective is
called a fixed number of times, on a thread (and on CUDA a stream) of its own; meanwhile this process's main thread runs
kernels, one after another, until it has ended. Only kernels that lie wholly inside the time of the collective count,
and the collective is never without a kernel beside it: what is measured is the *overlapped* time alone, not its ends.

Alone means in the same way: from the same threads and streams, with the same number of calls. Before anything is timed
both results are checked while both run.

The kernels of a GPU leave NCCL fewer multiprocessors and less memory bandwidth and the other way round
(NVIDIA/nccl#689, #1433); on a CPU Gloo's threads take turns with kernels on the cores. Neither is modelled: the ratios
are what is kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from math import ceil

import torch

from profiler.backends.base import Sample
from profiler.collectives.clock import Mark, mark
from profiler.collectives.kernels import Kernel
from profiler.collectives.sampling import MAX_INNER, MIN_SAMPLE_S, Agreement, Timed
from profiler.collectives.settings import CollectiveCase
from profiler.collectives.sides import COLLECTIVE_ALONE, COLLECTIVE_BESIDE, KERNEL_ALONE, KERNEL_BESIDE
from profiler.micro.collective import Member, build, fill_pattern, wrong_items

KERNEL_CALLS = 8
"""Kernels that fit into the time of the collective's calls, at least, by their times alone."""

AHEAD = 4
"""Kernels enqueued at most before the first of them has ended, so that few are left when the collective has."""

_CHECKED_CALLS = 3


class Beside:
    """A collective and a kernel, warm.

    Args:
        case: the collective.
        member: this process in its group; None where it rests.
        agreement: of all ranks.
        kernel: what runs beside it.
    """

    sides = (COLLECTIVE_ALONE, KERNEL_ALONE, KERNEL_BESIDE, COLLECTIVE_BESIDE)
    """What each time of a sample is; the last one is what `samples` are judged by."""

    def __init__(self, case: CollectiveCase, member: Member | None, agreement: Agreement, kernel: Kernel) -> None:
        self._case, self._member, self._agreement, self._kernel = case, member, agreement, kernel
        self._device = member.device if member else torch.device("cpu")
        self._stream = torch.cuda.Stream() if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._timed = Timed(case, member, agreement)
        call_s, kernel_s = self._largest(self._timed.sample(self._timed.inner).device_s, self._kernels(KERNEL_CALLS))
        window_s = max(MIN_SAMPLE_S, KERNEL_CALLS * kernel_s)
        self.inner = max(1, min(MAX_INNER, ceil(window_s / max(call_s, 1e-9))))
        self._alone = max(KERNEL_CALLS, ceil(self.inner * call_s / max(kernel_s, 1e-9)))
        self.samples()

    def samples(self) -> tuple[Sample, ...]:
        """One time for each of the `sides`; zeros where this process rests."""
        if self._member is None:
            for _ in range(3):
                self._largest(0.0)
            return (Sample(0.0, 0.0),) * 4
        self._largest(0.0)  # nobody computes while another still communicates
        with ThreadPoolExecutor(1) as thread:
            alone = thread.submit(self._communicate).result()
        self._largest(0.0)
        kernel_alone_s = self._kernels(self._alone)
        self._largest(0.0)
        together, kernel_s = self._both(self._communicate)
        return alone, Sample(kernel_alone_s, 0.0), Sample(kernel_s, 0.0), together

    def check(self) -> str | None:
        """Run both at once on numbers with known results.

        Returns:
            What is wrong; empty where another rank knows; None where all is right.
        """
        problem = ""
        if self._member is not None:
            problem = self._wrong(self._member)
        return problem if self._largest(bool(problem)) != (0.0,) else None

    def _wrong(self, member: Member) -> str:
        message = build(self._case, member)
        expected = self._kernel.run().clone()
        wrong: list[int] = []

        def communicate() -> Sample:
            with self._on_own_stream():
                for _ in range(_CHECKED_CALLS):
                    fill_pattern(message, member)
                    message.call()
                    wrong.append(wrong_items(message))
            return Sample(0.0, 0.0)

        self._both(communicate)
        if any(wrong):
            return f"{max(wrong)} of {self._case.items} items are wrong beside {self._kernel.text}"
        close = torch.allclose(self._kernel.run(), expected, rtol=1e-4, atol=1e-4)
        return "" if close else f"{self._kernel.text} is wrong beside a collective"

    def _communicate(self) -> Sample:
        """The collective's calls, in the thread and stream that they always have."""
        with self._on_own_stream():
            return self._timed.sample(self.inner)

    def _on_own_stream(self) -> AbstractContextManager[object]:
        if self._stream is None:
            return nullcontext()
        torch.cuda.set_device(self._device)  # each thread has a current device of its own
        return torch.cuda.stream(self._stream)

    def _kernels(self, count: int) -> float:
        """Seconds per call of so many kernels alone; zero where this process rests."""
        if self._member is None:
            return 0.0
        laps = [self._kernel_lap() for _ in range(count)]
        laps[-1][1].wait()
        return sum(start.until(end) for start, end in laps) / count

    def _kernel_lap(self) -> tuple[Mark, Mark]:
        start = mark(self._device)
        self._kernel.run()
        return start, mark(self._device)

    def _both(self, communicate: Callable[[], Sample]) -> tuple[Sample, float]:
        """What the collective took, and seconds per call of the kernels inside its time."""
        ended = threading.Event()
        laps: list[tuple[Mark, Mark]] = []
        running: deque[Mark] = deque()

        def run() -> Sample:
            try:
                return communicate()
            finally:
                ended.set()

        with ThreadPoolExecutor(1) as thread:
            future = thread.submit(run)
            while not (laps and ended.is_set()):
                laps.append(self._kernel_lap())
                running.append(laps[-1][1])
                if len(running) > AHEAD:
                    running.popleft().wait()
            sample = future.result()
        laps[-1][1].wait()
        first, last = self._timed.laps[0].start, self._timed.laps[-1].end
        inside = [lap for lap in laps if first.until(lap[0]) >= 0 and lap[1].until(last) >= 0]
        counted = inside or laps[-1:]
        return sample, sum(start.until(end) for start, end in counted) / len(counted)

    def _largest(self, *values: float) -> tuple[float, ...]:
        return self._agreement.largest(*values)
