"""What the state of an NVIDIA device means for measuring on it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from oracle.errors import StepgaugeError
from oracle.units import format_bytes
from profiler.environment import import_torch
from profiler.findings import Finding, Level
from profiler.nvml import DeviceKey, key_of
from profiler.nvml_state import DeviceState, device_state
from profiler.state_sampler import SLOWDOWNS
from profiler.this_machine import ROOT
from profiler.versions import version_of

BUSY_SHARE, TAKEN_SHARE = 0.05, 0.25
"""Utilization from which others visibly take time, as a display does, and from which they would be measured too."""

SETTLE_S = 1.0
"""The driver looks back so far: a program that has just ended still counts as use."""

HELD_MEMORY = 0.05
"""Share of the memory that a device without programs does not hold: driver and display take less."""

NEAR_SLOWDOWN_C = 5.0

LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE")
"""Where torchrun, Open MPI, MPICH and Slurm say how many processes of a job they started on a node."""


def cuda_findings(device: str) -> Iterator[Finding]:
    """Look at the CUDA devices; what is wrong with one counts where CUDA is asked for.

    Args:
        device: the kind that is to be measured. Of several CUDA devices it is the first; the others are only named.
    """
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
        if device == "cuda":
            for finding in _one_device(torch, index):
                yield finding if index == 0 or finding.level == "ok" else replace(finding, level="warn")
    if device == "cuda":
        yield from mps_findings(os.environ)


def _one_device(torch: ModuleType, index: int) -> Iterator[Finding]:
    subject = f"cuda {index}"
    try:
        state = _settled(key_of(torch.cuda.get_device_properties(index)))
    except StepgaugeError as error:
        yield Finding("warn", subject, f"its clocks, power and neighbours are unknown: {error}")
        return
    yield from device_findings(subject, state, os.getpid())
    yield from driver_findings(subject, state, str(torch.version.cuda))


def _settled(key: DeviceKey) -> DeviceState:
    """The state of a device; looked at twice where it is in use."""
    state = device_state(key)
    if state.utilization is None or state.utilization <= BUSY_SHARE:
        return state
    time.sleep(SETTLE_S)
    return device_state(key)


def device_findings(subject: str, state: DeviceState, own_process: int) -> Iterator[Finding]:
    """What the state of an NVIDIA device means for measuring on it.

    Args:
        subject: what the findings are about.
        state: what NVML says.
        own_process: the id of this process, which is no neighbour.
    """
    found = (*_sharing(state, own_process), *_divided(state), *_limits(state), *_health(state), *_links(state))
    yield from (Finding(level, subject, text, remedy) for level, text, remedy in found)
    if state.unread:
        names = ", ".join(note.split(" ")[0] for note in state.unread)
        yield Finding("ok", subject, f"NVML does not say: {names}")


_Found = tuple[Level, str, str]


def _sharing(state: DeviceState, own_process: int) -> Iterator[_Found]:
    others = [process for process in state.users if process != own_process]
    elsewhere = "choose another device with CUDA_VISIBLE_DEVICES"
    if state.utilization is not None and state.utilization > BUSY_SHARE:
        level: Level = "refuse" if state.utilization > TAKEN_SHARE else "warn"
        yield level, f"it is busy {state.utilization:.0%} of the time with the kernels of others", elsewhere
    if others:
        text = f"{len(others)} other process{'es' * (len(others) > 1)} on it"
        yield "warn", text, f"see what {_some(others)} {'do' if len(others) > 1 else 'does'}, or {elsewhere}"
    elif not state.users and _held_share(state) > HELD_MEMORY:
        text = f"{format_bytes(state.used_memory_bytes or 0)} of its memory are held by processes that cannot be seen"
        yield "warn", text, elsewhere
    if state.mps_processes:
        yield "warn", "processes share it through MPS", "constants hold beside such neighbours only"
    if state.compute_mode == "prohibited":
        yield "fail", "its compute mode forbids every program", "nvidia-smi --compute-mode=0, as root"


def _some(processes: list[int]) -> str:
    return ", ".join(map(str, processes[:5])) + (" ..." if len(processes) > 5 else "")


def _held_share(state: DeviceState) -> float:
    if state.used_memory_bytes is None or not state.total_memory_bytes:
        return 0.0
    return state.used_memory_bytes / state.total_memory_bytes


def _divided(state: DeviceState) -> Iterator[_Found]:
    if state.mig or state.instance:
        yield "warn", "an instance of a divided device (MIG) is used", "constants hold for instances of this size only"
    if state.virtualization == "vGPU":
        yield "warn", "it is a virtual part of a device (vGPU)", "constants hold for parts of this size only"


def _limits(state: DeviceState) -> Iterator[_Found]:
    limit_w, default_w = state.power_limit_w, state.default_power_limit_w
    if limit_w is not None and default_w is not None and limit_w < default_w - 1:
        text = f"its power is limited to {limit_w:.0f} W of {default_w:.0f} W"
        yield "warn", text, "constants hold at this limit only; nvidia-smi -pl changes it"
    clock_hz, default_hz = state.application_sm_clock_hz, state.default_application_sm_clock_hz
    if clock_hz is not None and default_hz is not None and abs(clock_hz - default_hz) > 1e6:
        text = f"its clock is set to {clock_hz / 1e6:.0f} MHz instead of {default_hz / 1e6:.0f} MHz"
        yield "warn", text, "constants hold at this clock only; nvidia-smi -rac resets it"


def _health(state: DeviceState) -> Iterator[_Found]:
    slow = [reason for reason in state.reasons or () if reason in SLOWDOWNS]
    if slow:
        yield "refuse", f"its clock is held down: {', '.join(slow)}", "see to its cooling and power supply"
    hot_c, limit_c = state.gpu_temperature_c, state.slowdown_temperature_c
    if not slow and hot_c is not None and limit_c is not None and hot_c > limit_c - NEAR_SLOWDOWN_C:
        yield "warn", f"it has {hot_c:.0f} C and slows itself down at {limit_c:.0f} C", "see to its cooling"
    if state.uncorrected_errors:
        text = f"{state.uncorrected_errors} errors of its memory could not be corrected since it was reset"
        yield "refuse", text, "reset it: nvidia-smi --gpu-reset, as root"
    if state.memory_needs_repair:
        yield "refuse", "a part of its memory waits to be replaced or could not be", "reset it, or have it exchanged"


def _links(state: DeviceState) -> Iterator[_Found]:
    width, most = state.pcie_width, state.max_pcie_width
    if width is not None and most is not None and width < most:
        yield "warn", f"its PCIe link has {width:.0f} of {most:.0f} lanes: copies are slower", "reseat it"
    if state.nvlinks:
        yield "ok", f"{sum(state.nvlinks)} of {len(state.nvlinks)} NVLinks are active", ""


def driver_findings(subject: str, state: DeviceState, torch_cuda: str) -> Iterator[Finding]:
    """Whether the driver is as new as the CUDA that torch was built for.

    Args:
        subject: what the finding is about.
        state: what NVML says.
        torch_cuda: the version that torch was built for.
    """
    if state.driver is None or state.cuda_driver is None:
        return
    if version_of(state.cuda_driver) < version_of(torch_cuda)[:2]:
        text = f"driver {state.driver} is of CUDA {state.cuda_driver}, torch of {torch_cuda}: kernels may be missing"
        yield Finding("warn", subject, text, "update the driver, or install torch for an older CUDA")
    else:
        yield Finding("ok", subject, f"driver {state.driver}, CUDA up to {state.cuda_driver}")


def mps_findings(environ: Mapping[str, str], root: Path = ROOT) -> Iterator[Finding]:
    """Whether kernels of several processes may run at once through an MPS server.

    Args:
        environ: the environment variables.
        root: of the file system.
    """
    share = environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")
    if share not in ("", "100"):
        text = f"MPS leaves this process {share} % of the multiprocessors"
        yield Finding("warn", "cuda", text, "unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, or calibrate for this share")
    pipe = environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108 - where CUDA looks for it
    if pipe and (root / pipe.lstrip("/") / "control").exists():
        text = "an MPS server is here: kernels of other processes can run beside those that are measured"
        yield Finding("warn", "cuda", text, "see that nobody else uses the device")


def rank_findings(environ: Mapping[str, str], device: str, visible: int) -> Iterator[Finding]:
    """Whether several processes of one job are about to measure one device.

    Args:
        environ: the environment variables.
        device: the kind that is to be measured.
        visible: how many CUDA devices this process sees; one that sees a single device may have it for itself.
    """
    for name in LOCAL_RANKS:
        digits = environ.get(name, "").partition("(")[0]
        if digits.isdecimal() and int(digits) > 1 and (device == "cpu" or visible > 1):
            text = f"{digits} processes of a job are here ({name}), and each would measure the same device"
            yield Finding("refuse", "ranks", text, "start one process, or give each a device: CUDA_VISIBLE_DEVICES")
            return
