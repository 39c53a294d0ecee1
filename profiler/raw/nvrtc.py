"""NVRTC through ctypes: CUDA C to a cubin for any architecture, with or without a device in the machine.

The library comes with a pip package (`nvidia-cuda-nvrtc`, which torch for CUDA needs itself; `nvidia-cuda-nvrtc-cu12`
for Volta, which CUDA 13 no longer knows) or with a CUDA toolkit. CuPy compiles for the device at hand only, and not for
the architectures with a letter behind their number that Hopper's instructions of four warps need.

Source: NVIDIA, NVRTC 13.0, "Basic Usage" and "Error Handling".
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from oracle.errors import BadInput, MissingDependency


class Nvrtc:
    """One libnvrtc.

    Args:
        path: of the shared library.

    Raises:
        OSError: it cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        for part in path.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(part))  # some releases look for it by name alone, and find what is loaded already
        self._library = ctypes.CDLL(str(path))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    @property
    def version(self) -> tuple[int, int]:
        """CUDA's version, such as (13, 0)."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return major.value, minor.value

    @property
    def architectures(self) -> tuple[int, ...]:
        """Compute capabilities that it compiles for, such as 75 and 90."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        found = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(found))
        return tuple(found)

    def compile(self, source: str, architecture: str) -> Compiled:
        """Compile CUDA C.

        Args:
            source: the text of one translation unit; it may include nothing.
            architecture: such as `80` or `90a`.

        Raises:
            BadInput: the compiler refuses it; the message holds its first complaint.
        """
        library, program = self._library, ctypes.c_void_p()
        created = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"stepgauge.cu", 0, None, None)
        self._check(created)
        try:
            options = [f"--gpu-architecture=sm_{architecture}".encode(), b"--std=c++17"]
            result = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
            if result:
                log = self._output(program, "ProgramLog").decode(errors="replace").strip("\0\n ")
                first = next((line for line in log.splitlines() if "error" in line), log.partition("\n")[0])
                raise BadInput(f"NVRTC {self._version_text} refuses a kernel for sm_{architecture}: {first}")
            return Compiled(self._output(program, "CUBIN"), self._output(program, "PTX").rstrip(b"\0").decode())
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    @property
    def _version_text(self) -> str:
        return ".".join(map(str, self.version))

    def _output(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, text))
        return text.raw

    def _check(self, result: int) -> None:
        if result:
            reason = self._library.nvrtcGetErrorString(result).decode()
            raise BadInput(f"NVRTC at {self.path}: {reason}")


@dataclass(frozen=True)
class Compiled:
    """What a source became: machine code of one architecture, and the virtual instructions before it."""

    cubin: bytes
    ptx: str


def find_nvrtc(architecture: int) -> Nvrtc:
    """The newest library at hand that compiles for a compute capability.

    Args:
        architecture: such as 90.

    Raises:
        MissingDependency: there is none.
    """
    for path in sorted(_libraries(), key=_major, reverse=True):
        try:
            library = Nvrtc(path)
        except OSError:
            continue
        if architecture in library.architectures:
            return library
    raise MissingDependency(f"an NVRTC for sm_{architecture}", "cuda12" if architecture < 75 else "cuda13")


def _major(path: Path) -> int:
    found = re.search(r"\.so\.(\d+)", path.name)
    return int(found[1]) if found else 0


def _libraries() -> Iterator[Path]:
    """Every libnvrtc of the pip packages, then of a toolkit; `alt` and `builtins` are parts of one."""
    for folder in _folders():
        yield from (path for path in folder.glob("libnvrtc.so.*") if path.name.count(".") == 2)


def _folders() -> Iterable[Path]:
    package = find_spec("nvidia")
    for root in package.submodule_search_locations or () if package else ():
        yield from Path(root).glob("*/lib")
    toolkits = [os.environ[name] for name in ("CUDA_PATH", "CUDA_HOME") if name in os.environ]
    for toolkit in (*toolkits, "/usr/local/cuda"):
        yield from (Path(toolkit) / "lib64", Path(toolkit) / "lib")
