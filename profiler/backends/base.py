"""What a kind of device offers to the measuring loop: open a case, then take samples of it on two clocks.

The loop (`profiler.run`) and the stopping rule know nothing of torch or CUDA, and a device with known constants
(`simulated`) is measured by the same code as a real one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from oracle.errors import MissingDependency, UnknownName
from profiler.backends import BACKENDS
from profiler.case import Case
from profiler.measurement import Environment


@dataclass(frozen=True)
class Sample:
    """One sample: seconds per call, already divided by the calls in it.

    Args:
        device_s: the device's own clock.
        host_s: the host's: the time to enqueue on an accelerator, the calling thread's CPU time on a CPU.
    """

    device_s: float
    host_s: float


class Kernel(Protocol):
    """A case with its inputs built."""

    def sample(self, inner: int) -> Sample:
        """Run the case `inner` times back to back and time them together."""


class Backend(Protocol):
    """A device that can be measured.

    Attributes:
        name: the kind, such as `cpu`.
        device: the device's own name, such as `NVIDIA H200`.
    """

    name: str
    device: str

    def environment(self) -> Environment:
        """What makes the numbers reproducible, read now."""

    def open(self, case: Case) -> AbstractContextManager[Kernel]:
        """Build the inputs of a case; they are freed on exit.

        Raises:
            OutOfMemory: they do not fit.
            BadInput: this kind of device cannot run the case.
        """


class OpenDevice(Protocol):
    """The `BACKEND` of each module in the table: opens the device of its kind with the given index."""

    def __call__(self, index: int) -> Backend:
        """Open it.

        Raises:
            NoDevice: there is none, or it cannot be used.
            MissingDependency: a library it needs is not installed.
        """


def open_backend(name: str, index: int = 0) -> Backend:
    """Open a device of the named kind.

    Args:
        name: `cpu`, `cuda` or `simulated`.
        index: which of several, as the kind's own library counts them.

    Raises:
        UnknownName: no such kind.
        NoDevice: there is none, or it cannot be used.
        MissingDependency: a library it needs is not installed.
    """
    if name not in BACKENDS:
        raise UnknownName("device", name, BACKENDS)
    try:
        module = import_module(BACKENDS[name])
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependency("torch", "measure") from None
    return cast(OpenDevice, module.BACKEND)(index)
