"""What a call costs before it does anything: an operation on a single number.

Four numbers, since they are spent in different places: `launch` is the device's time for a kernel that does next to
nothing, in a full queue; `enqueue` what the host needs to ask for it (a step waits for the larger of the two, not for
their sum); `launch_graph` the same kernel as a node of a CUDA graph; `round_trip` a call that is waited for. On a CPU
the calling thread does it all, and only `launch` is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from profiler.backends.base import Kernel
from profiler.backends.cpu import CpuKernel
from profiler.backends.torch_device import TorchDevice
from profiler.ceilings.probe import SECONDS, Probe
from profiler.micro.base import Result, Run, random_normal


def launch_probes(device: TorchDevice) -> list[Probe]:
    """The questions about launches that the device can answer."""
    prepare: dict[str, Callable[[], Kernel]] = {"launch": lambda: device.kernel([_negate(device)])}
    if device.name == "cuda":
        prepare |= {
            "enqueue": prepare["launch"],
            "launch_graph": lambda: device.kernel([_negate(device)], graph=True),
            "round_trip": lambda: CpuKernel([partial(_waited_for, _negate(device))]),
        }
    return [Probe("launch", name, SECONDS, 1.0, build, host=name == "enqueue") for name, build in prepare.items()]


def _negate(device: TorchDevice) -> Run:
    x = random_normal((1,), device.torch_device)
    out = torch.empty_like(x)
    return lambda: torch.neg(x, out=out)


def _waited_for(run: Run) -> Result:
    result = run()
    torch.cuda.synchronize()
    return result
