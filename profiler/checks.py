"""What is right and wrong with a machine before it is measured: each finding with a remedy.

Nothing here fails: an optional library that is absent or a file that the system hides becomes a finding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, util
from typing import Literal

from oracle.errors import StepgaugeError
from oracle.units import format_bytes
from profiler.environment import (
    available_memory_bytes,
    core_quota,
    cpu_model,
    frequency_governor,
    import_torch,
    usable_cores,
)
from profiler.nvml import DeviceState, device_state

MIN_TORCH = (2, 6)
MIN_FREE_BYTES = 2.0 * 2**30
BUSY_SHARE = 0.25
"""Load per core above which others visibly take time from what is measured."""

OPTIONAL = {
    "sklearn": ("scikit-learn", "kernel regression", "pip install 'stepgauge[measure]'"),
    "scipy": ("scipy", "fitting a calibration", "pip install 'stepgauge[measure]'"),
    "pynvml": ("nvidia-ml-py", "clocks, power and neighbours of NVIDIA devices", "pip install 'stepgauge[measure]'"),
    "cupy": ("cupy", "raw CUDA microbenchmarks", "pip install 'stepgauge[cuda12]' or 'stepgauge[cuda13]'"),
}
"""Module -> its package, what it is for, how to get it."""

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        level: `ok`, `warn` (numbers suffer) or `fail` (measuring is impossible).
        subject: what was looked at.
        text: what was found.
        remedy: what to do about it; empty where nothing is to be done.
    """

    level: Level
    subject: str
    text: str
    remedy: str = ""


def check_machine(device: str = "cpu") -> tuple[Finding, ...]:
    """Look at everything that measuring on a kind of device needs.

    Args:
        device: `cpu`, `cuda` or `simulated`. CUDA devices are looked at in any case; only where they are asked for is
            their absence a failure.
    """
    findings = [*_torch_findings(device), *_cuda_findings(device), _load(), _quota(), _governor(), _memory()]
    return (*findings, *_optional_libraries())


def _torch_findings(device: str) -> Iterator[Finding]:
    missing: Level = "ok" if device == "simulated" else "fail"
    install = "pip install 'stepgauge[measure]'"
    if util.find_spec("torch") is None:
        yield Finding(missing, "torch", "not installed: nothing can be measured, predicting works", install)
        return
    torch = import_torch()
    if torch is None:
        yield Finding(missing, "torch", "installed, but its import fails", "python -c 'import torch' says why")
        return
    wanted = ".".join(map(str, MIN_TORCH))
    if version_of(torch.__version__) < MIN_TORCH:
        yield Finding("warn", "torch", f"{torch.__version__} is older than {wanted}", f"pip install 'torch>={wanted}'")
    else:
        yield Finding("ok", "torch", f"{torch.__version__}, {torch.get_num_threads()} threads on {cpu_model()}")


def version_of(text: str) -> tuple[int, ...]:
    """The leading numbers of a version.

    >>> version_of("2.13.0+cpu"), version_of("2.6.0a0+git1234")
    ((2, 13, 0), (2, 6, 0))
    """
    numbers = []
    for part in text.split("+", maxsplit=1)[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _cuda_findings(device: str) -> Iterator[Finding]:
    torch = import_torch()
    if torch is None:
        return
    from profiler.backends.cuda import why_no_cuda

    why = why_no_cuda()
    if why:
        level: Level = "fail" if device == "cuda" else "ok"
        yield Finding(level, "cuda", f"no device: {why}", "measure on --device cpu" if device == "cuda" else "")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield Finding("ok", f"cuda {index}", f"{properties.name}, {format_bytes(properties.total_memory)}")
        try:
            state = device_state(str(properties.uuid))
        except StepgaugeError as error:
            yield Finding("warn", f"cuda {index}", f"its clocks, power and neighbours are unknown: {error}")
        else:
            yield from device_findings(f"cuda {index}", state, os.getpid())


def device_findings(subject: str, state: DeviceState, own_process: int) -> Iterator[Finding]:
    """What the state of an NVIDIA device means for measuring on it.

    Args:
        subject: what the findings are about.
        state: what NVML says.
        own_process: the id of this process, which is no neighbour.
    """
    others = [process for process in state.processes or () if process != own_process]
    if others:
        text = f"{len(others)} other processes use it"
        yield Finding("warn", subject, text, "wait for them, or choose another with CUDA_VISIBLE_DEVICES")
    limit_w, default_w = state.power_limit_w, state.default_power_limit_w
    if limit_w is not None and default_w is not None and limit_w < default_w:
        text = f"its power is limited to {limit_w:.0f} W of {default_w:.0f} W"
        yield Finding("warn", subject, text, "constants hold at this limit only; nvidia-smi -pl changes it")
    if state.mig:
        yield Finding("warn", subject, "it is cut into instances (MIG)", "constants hold for this instance's size only")


def _load() -> Finding:
    return load_finding(os.getloadavg()[0], usable_cores())


def load_finding(load: float, cores: int) -> Finding:
    """Whether other work takes time from what is measured."""
    text = f"load average {load:.2f} on {cores} cores"
    if load > BUSY_SHARE * cores:
        return Finding("warn", "load", text, "stop other work: what is measured now includes it")
    return Finding("ok", "load", text)


def _quota() -> Finding:
    try:
        return quota_finding(core_quota(), usable_cores())
    except (OSError, ValueError) as error:
        return Finding("warn", "cores", f"{usable_cores()} usable; the container's limit cannot be read: {error}")


def quota_finding(quota: float | None, cores: int) -> Finding:
    """Whether a container's limit on CPU time is below the cores that its threads see."""
    if quota is not None and quota < cores:
        text = f"{cores} are visible, but the container may use {quota:g} cores' worth of time"
        return Finding(
            "warn", "cores", text, f"set OMP_NUM_THREADS={max(1, int(quota))}, or threads wait for one another"
        )
    return Finding("ok", "cores", f"{cores} usable")


def _governor() -> Finding:
    try:
        governor = frequency_governor()
    except OSError:
        return Finding("ok", "clock", "the system does not say how it is governed")
    if governor == "performance":
        return Finding("ok", "clock", "governor performance")
    return Finding("warn", "clock", f"governor {governor}: clocks rise late", "cpupower frequency-set -g performance")


def _memory() -> Finding:
    return memory_finding(available_memory_bytes())


def memory_finding(free_bytes: float) -> Finding:
    """Whether there is room for the inputs of large layers."""
    if free_bytes == float("inf"):
        return Finding("warn", "memory", "the system does not say how much is free")
    text = f"{format_bytes(free_bytes)} available"
    if free_bytes < MIN_FREE_BYTES:
        return Finding("warn", "memory", text, f"large layers need more than {format_bytes(MIN_FREE_BYTES)}")
    return Finding("ok", "memory", text)


def _optional_libraries() -> Iterator[Finding]:
    for module, (package, purpose, remedy) in OPTIONAL.items():
        if util.find_spec(module) is None:
            yield Finding("ok", package, f"not installed: no {purpose}", remedy)
        else:
            yield Finding("ok", package, _installed_version(package))


def _installed_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # CuPy's wheels carry the version of CUDA in their names
        return "installed"
