"""NVIDIA devices through torch.

The device's clock is a pair of events around a *queued* region: a spinning kernel (`torch.cuda._sleep`) holds the
stream back until the host has enqueued everything, so that the gaps between launches are not timed. `host_s` is what
the host took to enqueue it; where that exceeds `device_s`, a training step is bound by launches. The stream is waited
for once per sample, after its end has been enqueued, to read the events. Their resolution is about half a microsecond,
so a sample should last 200 us (NVIDIA/nvbench measures in the same way, with a kernel that spins on a flag).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch.cuda import Event

from oracle.errors import NoDevice
from profiler.backends.base import Kernel, Sample
from profiler.backends.torch_device import Rotation, Stopwatch, TorchDevice
from profiler.micro.base import Run

COLD_PER_L2 = 3.0
"""Sets of inputs exceed the L2 cache this many times (nccl-tests rotates its buffers for the same reason)."""

FIRST_ENQUEUE_S = 100e-6
"""Assumed time to enqueue one call before any has been seen."""

MAX_HOLD_S = 0.05
"""Longest wait in front of a sample: a first call that loads its kernels would ask for seconds."""

SLEEP_CYCLES_PER_S = 2e9
"""At or above the clock of every device so far: a slower clock makes the stream wait longer, which does no harm."""


def _event() -> Event:
    return Event(enable_timing=True)  # type: ignore[no-untyped-call]


class _CudaKernel:
    def __init__(self, runs: Sequence[Run]) -> None:
        self._rotation = Rotation(runs)
        self._start, self._end = _event(), _event()
        self._enqueue_s = FIRST_ENQUEUE_S

    def sample(self, inner: int) -> Sample:
        runs, keep = self._rotation.take(inner), self._rotation.keep
        hold_s = min(2 * inner * self._enqueue_s, MAX_HOLD_S)
        torch.cuda._sleep(round(hold_s * SLEEP_CYCLES_PER_S))  # type: ignore[no-untyped-call]
        self._start.record()
        begun_s = time.perf_counter()
        for run in runs:
            keep.append(run())
        host_s = (time.perf_counter() - begun_s) / inner
        self._end.record()
        self._end.synchronize()
        self._enqueue_s = host_s
        return Sample(self._start.elapsed_time(self._end) * 1e-3 / inner, host_s)


class _CudaStopwatch:
    def __init__(self) -> None:
        self._events: list[Event] = []

    def mark(self) -> None:
        event = _event()
        event.record()
        self._events.append(event)

    def laps_s(self) -> list[float]:
        self._events[-1].synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in pairwise(self._events)]


class Cuda(TorchDevice):
    """One NVIDIA device, by its index among the visible ones."""

    name = "cuda"

    def __init__(self, index: int) -> None:
        properties = torch.cuda.get_device_properties(index)
        super().__init__(properties.name, torch.device("cuda", index), COLD_PER_L2 * properties.L2_cache_size)
        torch.cuda.set_device(index)

    def free_bytes(self) -> float:
        """What the driver has free, and what torch's allocator keeps without using it."""
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        kept = torch.cuda.memory_reserved(self.torch_device) - torch.cuda.memory_allocated(self.torch_device)
        return float(free + kept)

    def release_unused(self) -> None:
        """Empty the allocator's pool: a fragmented one has changed results by 13 % (csarofeen/pytorch#2243)."""
        torch.cuda.empty_cache()

    def _kernel(self, runs: Sequence[Run]) -> Kernel:
        return _CudaKernel(runs)

    def stopwatch(self) -> Stopwatch:
        """A stopwatch of events in the current stream."""
        return _CudaStopwatch()

    def host_seconds(self) -> float:
        """The host's elapsed time."""
        return time.perf_counter()


def open_cuda(index: int = 0) -> Cuda:
    """Open an NVIDIA device.

    Args:
        index: among the devices that CUDA_VISIBLE_DEVICES leaves.

    Raises:
        NoDevice: there is none, it has another number, or torch drives AMD devices here.
    """
    why = why_no_cuda()
    if why:
        raise NoDevice(f"no cuda device can be used: {why}")
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        raise NoDevice(f"there are {count} cuda devices, numbers 0 to {count - 1}, not {index}")
    return Cuda(index)


def why_no_cuda() -> str:
    """Why CUDA cannot be used here; empty where it can."""
    if torch.version.hip:
        return f"this torch {torch.__version__} is built for AMD ROCm {torch.version.hip}, which is not supported"
    if not torch.version.cuda:
        return f"this torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} for CUDA {torch.version.cuda} finds no device or no driver"
    return ""


BACKEND = open_cuda
