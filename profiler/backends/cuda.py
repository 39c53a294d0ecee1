"""NVIDIA devices through torch.

The device's clock is a pair of events around a *queued* region: the stream is held back until the host has enqueued
everything, so that the gaps between launches are not timed (`profiler.backends.cuda_events`). `host_s` is what the host
took to enqueue it; where that exceeds `device_s`, a training step is bound by launches. Events resolve about half a
microsecond, so a sample should last 200 us.

The hold is a kernel that spins on a flag where CuPy and NVRTC are at hand, and else a spin of a fixed time, about twice
what enqueueing took before.

A case whose execution says `graph` is captured, after warm-up on a side stream, into one graph for each number of calls
in a sample, so that a sample is one launch and the host's part is divided by its calls.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch

from oracle.errors import MissingDependency, NoDevice
from oracle.execution import Execution
from profiler.backends import cuda_events
from profiler.backends.base import Kernel, Sample
from profiler.backends.cuda_events import LONGEST_HOLD_S, EventPool, Hold, QueuedKernel
from profiler.backends.torch_device import Rotation, Stopwatch, TorchDevice
from profiler.micro.base import Result, Run

COLD_PER_L2 = 3.0
"""Sets of inputs exceed the L2 cache this many times (nccl-tests rotates its buffers for the same reason)."""

FIRST_ENQUEUE_S = 100e-6
"""Assumed time to enqueue a block before any has been seen."""

MAX_HOLD_S = 0.05
"""Longest spin of a fixed time: a first call that loads its kernels would ask for seconds."""

SLEEP_CYCLES_PER_S = 2e9
"""At or above the clock of every device so far: a slower clock makes the stream wait longer, which does no harm."""

WARM_UPS_BEFORE_CAPTURE = 3


def _event() -> cuda_events.Event:
    return cast(cuda_events.Event, torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]


def spin_s(enqueue_s: float) -> float:
    """How long to spin in front of a block that took `enqueue_s` to enqueue before.

    >>> spin_s(0.0), spin_s(1e-3), spin_s(10.0)
    (0.0002, 0.002, 0.05)
    """
    return min(2 * max(enqueue_s, FIRST_ENQUEUE_S), MAX_HOLD_S)


class SpinningHold:
    """A spin of a fixed time; it cannot say whether it was long enough."""

    def close(self, enqueue_s: float) -> None:
        """Spin about twice as long as enqueueing will take."""
        torch.cuda._sleep(round(spin_s(enqueue_s) * SLEEP_CYCLES_PER_S))  # type: ignore[no-untyped-call]

    def release(self) -> None:
        """Nothing: it ends by itself."""

    def failed(self) -> bool:
        """Never known."""
        return False


class FlagHold:
    """The raw kernel that spins on a flag in the host's memory.

    Args:
        device: which one.

    Raises:
        MissingDependency: CuPy or an NVRTC for this device is not installed.
    """

    def __init__(self, device: torch.device) -> None:
        from profiler.raw.module import load_file

        # The device sees pinned memory at the host's own addresses (CUDA C++ Programming Guide, unified addressing).
        flags = torch.zeros(2, dtype=torch.int32, pin_memory=True)
        self._flags = flags.numpy()  # keeps the tensor alive
        self._released, self._timed_out = flags.data_ptr(), flags.data_ptr() + flags.element_size()
        self._kernel = load_file("hold.cu", device).function("hold")
        self._number = 0

    def close(self, enqueue_s: float) -> None:
        """Hold until the next release, but no longer than LONGEST_HOLD_S."""
        self._number += 1
        addresses = np.uint64(self._released), np.uint64(self._timed_out)
        longest_ns = np.uint64(round(LONGEST_HOLD_S * 1e9))
        self._kernel.launch((1,), (1,), (*addresses, np.int32(self._number), longest_ns))

    def release(self) -> None:
        """Write the number of the hold where the device looks for it."""
        self._flags[0] = self._number

    def failed(self) -> bool:
        """Whether the last hold had to let go by itself."""
        return bool(self._flags[1] == self._number)


class GraphedKernel:
    """Closures captured into CUDA graphs; a sample is one launch of the graph of its number of calls.

    Args:
        runs: taken in turn, inside the graph.
        device: makes what times the launches.
    """

    def __init__(self, runs: Sequence[Run], device: Cuda) -> None:
        self._rotation = Rotation(runs)
        self._device = device
        self._graphs: dict[int, tuple[Any, QueuedKernel]] = {}
        here = torch.cuda.current_stream()
        # The default stream cannot be captured, and autograd runs backward where forward ran, which must be here.
        self._stream = device.side if here == torch.cuda.default_stream() else here
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            for run in self._rotation.take(WARM_UPS_BEFORE_CAPTURE * len(runs)):
                run()
        here.wait_stream(self._stream)

    def sample(self, inner: int) -> Sample:
        """One launch of `inner` calls, divided by them."""
        if inner not in self._graphs:
            self._graphs[inner] = self._capture(inner)
        taken = self._graphs[inner][1].sample(1)
        return Sample(taken.device_s / inner, taken.host_s / inner)

    def _capture(self, inner: int) -> tuple[Any, QueuedKernel]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            for run in self._rotation.take(inner):
                self._rotation.keep.append(run())

        def replay() -> Result:
            graph.replay()
            return ()

        return graph, self._device.queued([replay])


class _CudaStopwatch:
    def __init__(self) -> None:
        self._events: list[cuda_events.Event] = []

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
        self._pool = EventPool(_event)

    def free_bytes(self) -> float:
        """What the driver has free, and what torch's allocator keeps without using it."""
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        kept = torch.cuda.memory_reserved(self.torch_device) - torch.cuda.memory_allocated(self.torch_device)
        return float(free + kept)

    def release_unused(self) -> None:
        """Empty the allocator's pool: a fragmented one has changed results by 13 % (csarofeen/pytorch#2243)."""
        torch.cuda.empty_cache()

    def kernel(self, runs: Sequence[Run], *, graph: bool = False) -> Kernel:
        """Closures timed by events in the current stream."""
        return GraphedKernel(runs, self) if graph else self.queued(runs)

    def stream_for(self, execution: Execution) -> AbstractContextManager[object]:
        """A stream of its own for what will be captured."""
        stream: AbstractContextManager[object] = torch.cuda.stream(self.side)
        return stream if execution.graph else nullcontext()

    @cached_property
    def side(self) -> Any:
        """A stream that is not the default one."""
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def queued(self, runs: Sequence[Run]) -> QueuedKernel:
        """Closures that the host launches one by one."""
        return QueuedKernel(runs, self._pool, self.hold, time.perf_counter)

    @cached_property
    def hold(self) -> Hold:
        """What keeps the stream back."""
        try:
            return FlagHold(self.torch_device)
        except MissingDependency:
            return SpinningHold()

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
