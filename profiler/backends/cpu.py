"""CPUs: the calling thread does the work, or its part of it, so its clock is the device's clock.

`host_s` is the CPU time that the calling thread was given. Where it stays below the elapsed time, the thread waited for
other threads or another process had the core.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import torch

from oracle.errors import BadInput, NoDevice
from profiler.backends.base import Kernel, Sample
from profiler.backends.torch_device import Rotation, Stopwatch, TorchDevice
from profiler.environment import last_level_cache_bytes
from profiler.machine_state import available_memory_bytes
from profiler.micro.base import Run
from profiler.this_machine import cpu_model

COLD_BYTES = (64.0 * 2**20, 256.0 * 2**20)
"""The least and the most that sets of inputs exceed together; between them the size of the last-level cache decides."""


class CpuKernel:
    """Closures timed by the calling thread.

    Args:
        runs: taken in turn.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.rotation = Rotation(runs)

    def sample(self, inner: int) -> Sample:
        """Run the next `inner` of them and time them together."""
        runs, keep = self.rotation.take(inner), self.rotation.keep
        given_ns = time.thread_time_ns()
        start_ns = time.perf_counter_ns()
        for run in runs:
            keep.append(run())
        elapsed_ns = time.perf_counter_ns() - start_ns
        given_ns = time.thread_time_ns() - given_ns
        return Sample(elapsed_ns * 1e-9 / inner, given_ns * 1e-9 / inner)


class _CpuStopwatch:
    def __init__(self) -> None:
        self._marks_s: list[float] = []

    def mark(self) -> None:
        self._marks_s.append(time.perf_counter())

    def laps_s(self) -> list[float]:
        return [end - start for start, end in pairwise(self._marks_s)]


def _cold_bytes() -> float:
    least, most = COLD_BYTES
    return min(max(last_level_cache_bytes() or 0.0, least), most)


class Cpu(TorchDevice):
    """The CPU, with as many threads as torch uses."""

    name = "cpu"

    def __init__(self) -> None:
        super().__init__(cpu_model(), torch.device("cpu"), _cold_bytes())

    def free_bytes(self) -> float:
        """Memory that can be taken without swapping, within the limit of the container."""
        return available_memory_bytes()

    def release_unused(self) -> None:
        """Nothing: torch gives memory of CPUs back at once."""

    def kernel(self, runs: Sequence[Run], *, graph: bool = False) -> Kernel:
        """Closures timed by the calling thread.

        Raises:
            BadInput: CUDA graphs were asked for.
        """
        if graph:
            raise BadInput("a cpu device has no CUDA graphs")
        return CpuKernel(runs)

    def stopwatch(self) -> Stopwatch:
        """A stopwatch of the host."""
        return _CpuStopwatch()

    def host_seconds(self) -> float:
        """CPU time given to the calling thread so far."""
        return time.thread_time()


def open_cpu(index: int = 0) -> Cpu:
    """The CPU: there is one.

    Raises:
        NoDevice: another was asked for.
    """
    if index:
        raise NoDevice(f"there is one cpu device, number 0, not {index}")
    return Cpu()


BACKEND = open_cpu
