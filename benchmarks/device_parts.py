"""Small parts of `device_check.sh` that no command of stepgauge does: python benchmarks/device_parts.py PART DEVICE."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from oracle.errors import StepgaugeError
from profiler.backends.base import open_backend
from profiler.backends.torch_device import TorchDevice
from profiler.environment import read_environment


def state(device: str) -> Any:
    """Which fields of its state the device tells, and which not."""
    if device == "cuda":
        from profiler.nvml import key_of
        from profiler.nvml_state import device_state

        try:
            found = asdict(device_state(key_of(torch.cuda.get_device_properties(0))))
        except StepgaugeError as error:
            return {"error": str(error)}
        known = [name for name, value in found.items() if value is not None and name != "unread"]
        return {"known": known, "unread": found["unread"]}
    environment = read_environment(device)
    return {"known": [*environment.identity, *environment.state], "unread": environment.notes}


def launches(device: str) -> Any:
    """How the clock holds the stream, and what launches cost one by one and from a graph."""
    from profiler.ceilings.launches import launch_probes
    from profiler.ceilings.raw import raw_probes

    backend = open_backend(device)
    if not isinstance(backend, TorchDevice):
        sys.exit(f"a {device} device runs no kernels")
    seconds = {}
    for probe in (*launch_probes(backend), *raw_probes(backend)):
        if probe.group == "launch":
            kernel = probe.prepare()
            samples = [kernel.sample(64) for _ in range(20)]
            seconds[probe.question] = median(sample.host_s if probe.host else sample.device_s for sample in samples)
    return {
        "hold": type(backend.hold).__name__ if hasattr(backend, "hold") else "none: the host's clock",
        "seconds": seconds,
    }


def collective(device: str) -> Any:
    """An all_reduce of one rank through NCCL, or Gloo on a CPU."""
    backend = "nccl" if device == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=0, world_size=1)
        where = torch.device(device)
        found = [_all_reduce(items, where) for items in (8, 2**20)]
        dist.destroy_process_group()
    return found


def _all_reduce(items: int, where: torch.device) -> dict[str, Any]:
    numbers = torch.arange(items, dtype=torch.float32, device=where)
    expected = numbers.clone()
    dist.all_reduce(numbers)
    right = torch.equal(numbers, expected)
    times_s = []
    for _ in range(20):
        begun_s = time.perf_counter()
        dist.all_reduce(numbers)
        if where.type == "cuda":
            torch.cuda.synchronize()
        times_s.append(time.perf_counter() - begun_s)
    return {"what": f"all_reduce of {4 * items} bytes, one rank", "right": right, "seconds": median(times_s)}


PARTS: dict[str, Callable[[str], Any]] = {"state": state, "launches": launches, "collective": collective}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]](sys.argv[2])))
