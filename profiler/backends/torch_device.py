"""What CPUs and CUDA devices have in common when torch runs the kernels.

Inputs rotate. A kernel that is repeated on one set of inputs finds them in the cache; in a training step other layers
ran in between. So up to sixteen sets are built and taken in turn, as many as exceed `cold_bytes` together. A set that
is larger by itself stays alone, and sets of small layers stay partly warm, as the activation that the layer before has
just written is in a step.

An execution that asks for a warm cache gets one set.

Results are allocated anew by every call, as in a step, and kept for as many calls as there are sets, so that a kernel
does not write where it has just written: a batch norm's backward on a CPU took 39 ms where its result went to the same
place every time, 142 ms where it did not, and 167 ms inside a step of ResNet-50. On CPUs with glibc a tensor above
32 MiB gets fresh pages from every call, in a step and here; what else a step's allocator faults in again (75,000 to
120,000 pages a step of ResNet-50, about a microsecond each) is not in any kernel's time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import cycle, islice
from typing import ClassVar, Protocol

import torch

from oracle.errors import BadInput, OutOfMemory
from oracle.execution import Execution
from oracle.units import format_bytes
from profiler.backends.base import Kernel
from profiler.case import Case
from profiler.environment import read_environment
from profiler.measurement import Environment
from profiler.micro.base import Builder, Result, Run, find_micro
from profiler.precision import switched

MAX_SETS = 16


class TorchDevice(ABC):
    """A device on which torch runs kernels and whole steps.

    Attributes:
        name: the kind of device.
        device: its own name.
        torch_device: torch's handle.
        cold_bytes: how much memory the sets of inputs should exceed together.
    """

    name: ClassVar[str]

    def __init__(self, device: str, torch_device: torch.device, cold_bytes: float) -> None:
        self.device = device
        self.torch_device = torch_device
        self.cold_bytes = cold_bytes

    def environment(self) -> Environment:
        """What makes the numbers reproducible, read now."""
        return read_environment(self.name, self.torch_device.index or 0)

    @contextmanager
    def open(self, case: Case) -> Iterator[Kernel]:
        """Build the inputs of a case; they are freed on exit.

        Raises:
            OutOfMemory: they do not fit.
            BadInput: this kind of device cannot run the case.
        """
        _, micro = find_micro(case.call)
        self.release_unused()
        work = case.call.layer.work(case.call.phase, case.call.samples, case.execution)
        # Operands and results once, and as much again for work space, reordered copies and the kept graph.
        self.must_fit(2 * work.bytes, f"a {case.call.layer.kind} layer's {case.call.phase}")
        with switched(case.execution, self.name), torch_errors(self.device), self.stream_for(case.execution):
            builder = Builder(case.call, case.execution, self.torch_device)
            sets = 1 if case.execution.warm else sets_of_inputs(work.bytes, self.cold_bytes)
            yield self.kernel([micro(builder).run for _ in range(sets)], graph=case.execution.graph)

    def stream_for(self, execution: Execution) -> AbstractContextManager[object]:
        """Where a case's tensors are made and its kernels run: by default where everything does."""
        return nullcontext()

    def must_fit(self, needed_bytes: float, what: str) -> None:
        """Refuse what does not fit before it is tried: a CPU's system would end the process.

        Raises:
            OutOfMemory: less is free.
        """
        free_bytes = self.free_bytes()
        if needed_bytes > free_bytes:
            needed, free = format_bytes(needed_bytes), format_bytes(free_bytes)
            raise OutOfMemory(f"{what} takes about {needed}; {self.device} has {free} free")

    @abstractmethod
    def free_bytes(self) -> float:
        """Memory that can still be allocated."""

    @abstractmethod
    def release_unused(self) -> None:
        """Give back what torch's allocator keeps of earlier cases."""

    @abstractmethod
    def kernel(self, runs: Sequence[Run], *, graph: bool = False) -> Kernel:
        """Closures that do the same on different inputs, as what can be sampled.

        Args:
            runs: taken in turn.
            graph: launch them from a CUDA graph.
        """

    @abstractmethod
    def stopwatch(self) -> Stopwatch:
        """A new stopwatch on the device's clock."""

    @abstractmethod
    def host_seconds(self) -> float:
        """The host's clock, as `Sample.host_s` means it."""


class Stopwatch(Protocol):
    """Marks points in a queue of work without waiting for the device."""

    def mark(self) -> None:
        """Mark the point where the device will have finished everything that was asked so far."""

    def laps_s(self) -> list[float]:
        """Seconds between successive marks; waits until the device has passed the last one."""


class Rotation:
    """Closures in turn, from one sample to the next; `keep` holds their latest results, one for each closure."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = cycle(runs)
        self.keep: deque[Result] = deque(maxlen=len(runs))

    def take(self, inner: int) -> list[Run]:
        """The next `inner` of them."""
        return list(islice(self._runs, inner))


def sets_of_inputs(set_bytes: float, cold_bytes: float) -> int:
    """How many sets of inputs to rotate: enough to exceed `cold_bytes` together, from 1 to MAX_SETS.

    >>> sets_of_inputs(20 * 2**20, 64 * 2**20), sets_of_inputs(2**10, 2**26), sets_of_inputs(2**30, 2**26)
    (4, 16, 1)
    """
    return min(MAX_SETS, max(1, math.ceil(cold_bytes / set_bytes)))


@contextmanager
def torch_errors(device: str) -> Iterator[None]:
    """Turn what torch says of memory and of missing kernels into errors of our own.

    Raises:
        OutOfMemory: an allocation failed.
        BadInput: torch has no such kernel on this device.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"{device}: {_first_line(error)}") from None
    except NotImplementedError as error:
        raise BadInput(f"{device} cannot run this: {_first_line(error)}") from None
    except RuntimeError as error:
        text = _first_line(error)
        if "can't allocate memory" in text or "not enough memory" in text:
            raise OutOfMemory(f"{device}: {text}") from None
        if any(reason in text for reason in _NO_KERNEL):
            raise BadInput(f"{device} cannot run this: {text}") from None
        raise


_NO_KERNEL = ("not implemented for", "not supported", "No available kernel", "No viable backend", "captur")
"""How torch says that it cannot: in general, of an attention, and of what no CUDA graph can hold."""


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
