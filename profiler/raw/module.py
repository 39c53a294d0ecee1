"""Raw kernels on a device: compiled by NVRTC, loaded and launched by CuPy, on torch's stream.

The machine code goes through a file because that is how `cupy.RawModule` takes code that it has not compiled itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oracle.errors import MissingDependency
from profiler.raw.nvrtc import find_nvrtc
from profiler.raw.sources import text


@dataclass(frozen=True)
class Function:
    """One kernel.

    Args:
        kernel: CuPy's.
        device: the device that it was loaded on.
    """

    kernel: Any
    device: torch.device

    def launch(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any], shared: int = 0) -> None:
        """Enqueue it on torch's current stream.

        Args:
            grid, block: blocks, and threads of each.
            arguments: NumPy scalars of the parameters' own types; an address is a `numpy.uint64`.
            shared: bytes of shared memory of each block.
        """
        import cupy

        with cupy.cuda.Device(self.device.index), cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            self.kernel(grid, block, tuple(arguments), shared_mem=shared)


class Module:
    """Compiled code on a device.

    Args:
        source: CUDA C.
        device: where.
        suffix: of the architecture, `a` for what only this one has.

    Raises:
        MissingDependency: CuPy, or an NVRTC for this device, is not installed.
        BadInput: the compiler refuses the source.
    """

    def __init__(self, source: str, device: torch.device, suffix: str = "") -> None:
        try:
            import cupy
        except ImportError:
            raise MissingDependency("CuPy", "cuda13") from None
        architecture = architecture_of(device)
        compiled = find_nvrtc(architecture).compile(source, f"{architecture}{suffix}")
        self._device = device
        with tempfile.TemporaryDirectory() as folder, cupy.cuda.Device(device.index):
            file = Path(folder) / "kernels.cubin"
            file.write_bytes(compiled.cubin)
            self._module = cupy.RawModule(path=str(file))
            self._module.compile()  # loads the file while it is there

    def function(self, name: str) -> Function:
        """One of its kernels."""
        return Function(self._module.get_function(name), self._device)


def load_file(name: str, device: torch.device) -> Module:
    """Compile and load one of the files beside this one; see `Module`."""
    return Module(text(name), device)


def architecture_of(device: torch.device) -> int:
    """The compute capability of a device as one number, such as 90."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
