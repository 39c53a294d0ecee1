"""The NVIDIA devices of one process, driven by CuPy: a stream and an NCCL communicator for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from oracle.errors import MissingDependency, NoDevice

_HOLD = """extern "C" __global__ void hold(long long cycles) {
    const long long begun = clock64();
    while (clock64() - begun < cycles) {}
}"""


@dataclass(frozen=True)
class Node:
    """The devices of one process.

    Args:
        cupy: the library.
        communicators, streams: one of each for every device, in the order of the ranks.
        hold: spins for so many cycles on a stream.
    """

    cupy: Any
    communicators: Sequence[Any]
    streams: Sequence[Any]
    hold: Callable[..., object]

    @property
    def ranks(self) -> int:
        """How many devices there are."""
        return len(self.communicators)

    @property
    def nccl(self) -> str:
        """NCCL's version."""
        return nccl_version(int(self.cupy.cuda.nccl.get_version()))

    def wait(self) -> None:
        """Return when all devices have done what was enqueued."""
        for stream in self.streams:
            stream.synchronize()


def nccl_version(number: int) -> str:
    """NCCL's version number in the form that people and torch write.

    >>> nccl_version(22304), nccl_version(2708)
    ('2.23.4', '2.7.8')
    """
    major, rest = divmod(number, 10_000) if number >= 10_000 else divmod(number, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def open_node(ranks: int) -> Node:
    """Open the first devices of this machine and connect them.

    Raises:
        MissingDependency: CuPy is not installed. NoDevice: too few devices, or a CuPy without NCCL.
    """
    cupy = _import_cupy()
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise NoDevice(f"CuPy finds no CUDA device: {error}") from None
    if count < ranks:
        raise NoDevice(f"{ranks} ranks need a CUDA device each; CuPy finds {count}")
    if not cupy.cuda.nccl.available:
        raise NoDevice("this CuPy has no NCCL; install the package nvidia-nccl that goes with it")
    streams = []
    for device in range(ranks):
        with cupy.cuda.Device(device):
            streams.append(cupy.cuda.Stream(non_blocking=True))
    communicators = cupy.cuda.nccl.NcclCommunicator.initAll(list(range(ranks)))
    return Node(cupy, communicators, streams, cupy.RawKernel(_HOLD, "hold"))


def _import_cupy() -> ModuleType:
    try:
        import cupy
    except ImportError:
        raise MissingDependency("CuPy", "cuda12") from None
    found: ModuleType = cupy
    return found
