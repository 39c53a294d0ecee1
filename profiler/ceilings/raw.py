"""Ceilings of NVIDIA devices by kernels of our own (`profiler.raw`), through CuPy on torch's stream.

Compute kernels run as many warps as the device holds at once, each on its own registers, for about two milliseconds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from profiler.backends.base import Kernel
from profiler.backends.torch_device import TorchDevice
from profiler.ceilings.probe import BYTES, FLOP, SECONDS, Probe
from profiler.ceilings.streams import array_items, cache_bytes
from profiler.micro.base import Result, random_normal
from profiler.raw.module import Module, architecture_of, load_file
from profiler.raw.sources import Kernel as RawKernel
from profiler.raw.sources import fma_kernels, mma_kernels

THREADS = 256
BLOCKS_PER_MULTIPROCESSOR = 8
"""Of THREADS threads: all that a multiprocessor holds, on most devices; more wait for their turn."""

ROUNDS = 2000
VECTOR_BYTES = 16
UNROLL = 4
CACHED = 0.4
"""Share of the second-level cache that the cached read takes: half of it may lie on the far side of the chip."""

CACHED_PASSES = 50
WORDS = {"read": 1, "write": 1, "copy": 2, "triad": 3}


def raw_probes(device: TorchDevice) -> list[Probe]:
    """Every raw question that the device's architecture knows; none on a CPU."""
    if device.name != "cuda":
        return []
    architecture = architecture_of(device.torch_device)
    compute = [_compute_probe(kernel, device) for kernel in (*fma_kernels(architecture), *mma_kernels(architecture))]
    beyond = _whole(array_items(cache_bytes(device)) * 4, device)
    cached = _whole(CACHED * cache_bytes(device), device)
    streams = [
        Probe(
            group="memory",
            question=f"raw_{name}",
            unit=BYTES,
            amount=float(words * beyond),
            prepare=partial(_stream, name, beyond, device),
            case={"array_bytes": beyond},
        )
        for name, words in WORDS.items()
    ]
    level_2 = Probe(
        group="memory",
        question="raw_read_l2",
        unit=BYTES,
        amount=float(cached * CACHED_PASSES),
        prepare=partial(_stream, "read", cached, device, passes=CACHED_PASSES),
        case={"array_bytes": cached},
    )
    empty = Probe("launch", "raw_empty", SECONDS, 1.0, partial(_empty, device))
    return [*compute, *streams, level_2, empty]


def _multiprocessors(device: TorchDevice) -> int:
    return int(torch.cuda.get_device_properties(device.torch_device).multi_processor_count)


def _compute_probe(kernel: RawKernel, device: TorchDevice) -> Probe:
    threads = kernel.group if kernel.group > 32 else THREADS
    blocks = BLOCKS_PER_MULTIPROCESSOR * _multiprocessors(device)
    return Probe(
        group="compute",
        question=kernel.name,
        unit=FLOP,
        amount=float(kernel.flop_per_round) * ROUNDS * blocks * threads / kernel.group,
        prepare=partial(_compute, kernel, (blocks, threads), device),
    )


def _compute(kernel: RawKernel, shape: tuple[int, int], device: TorchDevice) -> Kernel:
    blocks, threads = shape
    where = device.torch_device
    suffix = kernel.architecture.lstrip("0123456789")
    function = Module(kernel.source, where, suffix).function(kernel.name)
    start = _random(kernel.item, where)
    out = torch.empty(blocks * threads, dtype=torch.float64, device=where)
    arguments: tuple[Any, ...] = (_address(out), _address(start), *_factors(kernel), np.int32(ROUNDS))

    def run() -> Result:
        function.launch((blocks,), (threads,), arguments, kernel.shared_bytes)
        return out

    return device.kernel([run])


def _factors(kernel: RawKernel) -> tuple[Any, ...]:
    """The two constants of a chain x = a x + b, as its own type; tensor-core kernels take none."""
    if not kernel.name.startswith("fma_"):
        return ()
    values = (-0.9995, 0.7)
    if kernel.item in ("float32", "float64"):
        return tuple(np.dtype(kernel.item).type(value) for value in values)
    pairs = torch.tensor([[value, value] for value in values], dtype=getattr(torch, kernel.item))
    return tuple(np.uint32(word) for word in pairs.view(torch.int32).flatten().tolist())


def _random(item: str, where: torch.device) -> Tensor:
    """Normal random numbers of a type, at least 1,024 operands of 8 bytes."""
    if item == "int8":
        return torch.randint(-128, 128, (8192,), dtype=torch.int8, device=where)
    dtype = torch.float8_e4m3fn if item == "float8" else getattr(torch, item)
    return random_normal((8192,), where).to(dtype)


def _address(tensor: Tensor) -> np.uint64:
    return np.uint64(tensor.data_ptr())


def _whole(size_bytes: float, device: TorchDevice) -> int:
    """A size that is a multiple of what all threads of the grid load at once."""
    step = VECTOR_BYTES * UNROLL * THREADS * BLOCKS_PER_MULTIPROCESSOR * _multiprocessors(device)
    return max(1, round(size_bytes / step)) * step


def _stream(name: str, size_bytes: int, device: TorchDevice, passes: int = 1) -> Kernel:
    where = device.torch_device
    arrays = max(2, WORDS[name])
    device.must_fit(float(arrays * size_bytes), f"a {name} of {arrays} arrays")
    function = load_file("memory.cu", where).function(name)
    a, b, *rest = (random_normal((size_bytes // 4,), where) for _ in range(arrays))
    items = np.int64(size_bytes // VECTOR_BYTES)
    arguments: dict[str, tuple[Any, ...]] = {
        "read": (_address(a), _address(b), items, np.int32(passes)),
        "write": (_address(a), np.float32(0.7), items),
        "copy": (_address(a), _address(b), items),
        "triad": (_address(a), _address(b), *map(_address, rest), np.float32(0.5), items),
    }
    grid = (BLOCKS_PER_MULTIPROCESSOR * _multiprocessors(device),)

    def run() -> Result:
        function.launch(grid, (THREADS,), arguments[name])
        return (a, b, *rest)

    return device.kernel([run])


def _empty(device: TorchDevice) -> Kernel:
    function = load_file("memory.cu", device.torch_device).function("empty")

    def run() -> Result:
        function.launch((1,), (1,), ())
        return ()

    return device.kernel([run])
