"""Copies between the host and a device, within a device, and between devices, from small to large.

Pinned memory is copied by the device itself, and enqueued like a kernel; pageable memory goes through a buffer of the
driver and holds the host up, so it is timed on the host's clock. A copy within a device reads and writes: its bytes
count once here, as for the others, and `copy` of the memory questions counts both.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from profiler.backends.base import Kernel
from profiler.backends.cpu import CpuKernel
from profiler.backends.torch_device import TorchDevice
from profiler.ceilings.probe import BYTES, Probe
from profiler.micro.base import Result, random_normal

SIZES_BYTES = (64 * 2**10, 4 * 2**20, 256 * 2**20)
ITEM_BYTES = 4


def copy_probes(device: TorchDevice) -> list[Probe]:
    """Every direction that this machine has, in every size; a CPU copies from the host to the host."""
    ways = ["host_to_host"]
    if device.name == "cuda":
        ways = ["host_to_device", "device_to_host", "pageable_to_device", "device_to_device"]
        ways += [f"to_peer_{index}" for index in _peers(device.torch_device)]
    return [
        Probe("copy", f"copy_{way}", BYTES, float(size), partial(_copy, way, size, device), {"bytes": size})
        for way in ways
        for size in SIZES_BYTES
    ]


def _peers(device: torch.device) -> list[int]:
    own = device.index or 0
    others = (index for index in range(torch.cuda.device_count()) if index != own)
    return [index for index in others if torch.cuda.can_device_access_peer(own, index)]


def _copy(way: str, size_bytes: int, device: TorchDevice) -> Kernel:
    device.must_fit(2.0 * size_bytes, f"a {way.replace('_', ' ')} copy")
    items, here = size_bytes // ITEM_BYTES, device.torch_device
    source, target = random_normal((items,), here), torch.empty(items, device=here)
    if way in ("host_to_device", "device_to_host"):
        pinned = torch.empty(items, pin_memory=True).copy_(source)
        source, target = (pinned, target) if way == "host_to_device" else (source, pinned)
    elif way == "pageable_to_device":
        return CpuKernel([partial(_copied, source.cpu(), target)])
    elif way.startswith("to_peer_"):
        target = torch.empty(items, device=torch.device("cuda", int(way.rpartition("_")[2])))
    return device.kernel([lambda: target.copy_(source, non_blocking=True)])


def _copied(source: Tensor, target: Tensor) -> Result:
    target.copy_(source)
    torch.cuda.synchronize()
    return target
