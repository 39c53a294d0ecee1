"""Memory bandwidth through torch: read, copy and triad over arrays of at least four times the largest cache each.

Bytes are counted as STREAM does (McCalpin, 1995): operands and result once. A CPU that reads a line before it writes it
moves half as much again in a copy, and a third more in a triad.
"""

from __future__ import annotations

from functools import partial

import torch

from profiler.backends.base import Kernel
from profiler.backends.torch_device import TorchDevice
from profiler.ceilings.probe import BYTES, Probe
from profiler.environment import last_level_cache_bytes
from profiler.micro.base import Run, random_normal

CACHES = 4
"""Each array is as many times the largest cache (STREAM's own rule)."""

MIN_ARRAY_BYTES = 64 * 2**20
ITEM_BYTES = 4
WORDS = {"read": 1, "copy": 2, "triad": 3}
"""Items moved per item of an array."""


def array_items(cache_bytes: float) -> int:
    """Float32 items of one array.

    >>> array_items(260 * 2**20) * 4 / 2**20, array_items(1e6) * 4 / 2**20
    (1040.0, 64.0)
    """
    return round(max(CACHES * cache_bytes, MIN_ARRAY_BYTES)) // ITEM_BYTES


def cache_bytes(device: TorchDevice) -> float:
    """The size of the largest cache: the second level of a CUDA device, the last of a CPU (32 MiB where unknown)."""
    if device.name == "cuda":
        return float(torch.cuda.get_device_properties(device.torch_device).L2_cache_size)
    return last_level_cache_bytes() or 32.0 * 2**20


def stream_probes(device: TorchDevice) -> list[Probe]:
    """The three streams through torch's own kernels."""
    items = array_items(cache_bytes(device))
    return [
        Probe(
            group="memory",
            question=name,
            unit=BYTES,
            amount=float(words * items * ITEM_BYTES),
            prepare=partial(_stream, name, items, device),
            case={"array_bytes": items * ITEM_BYTES},
        )
        for name, words in WORDS.items()
    ]


def _stream(name: str, items: int, device: TorchDevice) -> Kernel:
    words = WORDS[name]
    device.must_fit(float(words * items * ITEM_BYTES), f"a {name} of {words} arrays beyond the caches")
    a, *others = (random_normal((items,), device.torch_device) for _ in range(words))
    runs: dict[str, Run] = {
        "read": a.sum,
        "copy": lambda: a.copy_(others[0]),
        "triad": lambda: torch.add(others[0], others[1], alpha=0.5, out=a),
    }
    return device.kernel([runs[name]])
