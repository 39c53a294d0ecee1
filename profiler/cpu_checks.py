"""What the state of the CPUs, the memory and the container means for measuring here.

Nothing of it is a reason to refuse: a machine that others use gives constants that hold on such a machine.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

from oracle.units import format_bytes
from profiler.findings import Finding
from profiler.machine_state import (
    BusyProcess,
    available_memory_bytes,
    busy_processes,
    core_quota,
    frequency_governor,
    huge_pages,
    is_virtual,
    memory_limits,
    numa_nodes,
    physical_cores,
    stolen_s,
    turbo,
)
from profiler.this_machine import ROOT, own_cores

MIN_FREE_BYTES = 2.0 * 2**30
BUSY_SHARE = 0.25
"""Load per core above which others visibly take time from what is measured."""

HEAVY_CORES = 0.2
"""Cores' worth of time from which a process is named."""

STOLEN_SHARE = 0.02
LOOK_S = 0.3
"""How long other processes are watched."""


def cpu_findings(threads: int | None, root: Path = ROOT) -> Iterator[Finding]:
    """Look at everything that changes how fast a CPU works.

    Args:
        threads: with which torch computes; None where there is no torch.
        root: of the file system.
    """
    cores = own_cores()
    yield load_finding(os.getloadavg()[0], len(cores))
    yield from _neighbours(cores, root)
    yield _quota(len(cores), root)
    yield from _placement(cores, threads, root)
    yield _clock(root)
    yield memory_finding(available_memory_bytes(root))
    yield from _memory(root)


def load_finding(load: float, cores: int) -> Finding:
    """Whether other work takes time from what is measured."""
    text = f"load average {load:.2f} on {cores} cores"
    if load > BUSY_SHARE * cores:
        return Finding("warn", "load", text, "stop other work: what is measured now includes it")
    return Finding("ok", "load", text)


def _neighbours(cores: frozenset[int], root: Path) -> Iterator[Finding]:
    """Who takes time from these cores now."""
    before, begun_s = stolen_s(cores, root), time.monotonic()
    heavy = busy_processes(LOOK_S, HEAVY_CORES, root)
    after, elapsed_s = stolen_s(cores, root), time.monotonic() - begun_s
    yield from heavy_findings(heavy)
    if before is not None and after is not None:
        yield from stolen_findings((after - before) / (elapsed_s * len(cores)))
    try:
        if is_virtual(root):
            yield Finding("ok", "neighbours", "a virtual machine: others on the same host cannot be seen")
    except OSError:
        return


def heavy_findings(heavy: tuple[BusyProcess, ...]) -> Iterator[Finding]:
    """Other processes that are at work; their names are for who is here, and not for who reads a calibration."""
    if heavy:
        many = f"{len(heavy)} other processes take" if len(heavy) > 1 else "another process takes"
        named = ", ".join(f"{one.name} ({one.pid})" for one in heavy[:3])
        more = f" and {len(heavy) - 3} more" if len(heavy) > 3 else ""
        text = f"{many} {sum(one.cores for one in heavy):.1f} cores"
        yield Finding("warn", "neighbours", text, f"wait for {named}{more}")


def stolen_findings(share: float) -> Iterator[Finding]:
    """Whether the hypervisor gives these cores to others."""
    if share > STOLEN_SHARE:
        text = f"the hypervisor gave {share:.0%} of the time to other machines"
        yield Finding("warn", "neighbours", text, "measure at a quieter time, or on a machine of its own")


def _quota(cores: int, root: Path) -> Finding:
    try:
        return quota_finding(core_quota(root), cores)
    except (OSError, ValueError, ArithmeticError) as error:
        return Finding("warn", "cores", f"{cores} usable; the container's limit cannot be read: {error}")


def quota_finding(quota: float | None, cores: int) -> Finding:
    """Whether a container's limit on CPU time is below the cores that its threads see."""
    if quota is not None and quota < cores:
        text = f"{cores} are visible, but the container may use {quota:g} cores' worth of time"
        remedy = f"set OMP_NUM_THREADS={max(1, int(quota))}, or threads wait for one another"
        return Finding("warn", "cores", text, remedy)
    return Finding("ok", "cores", f"{cores} usable")


def _placement(cores: frozenset[int], threads: int | None, root: Path) -> Iterator[Finding]:
    try:
        physical = physical_cores(cores, root)
        if threads is not None:
            yield threads_finding(threads, physical, len(cores))
        yield from numa_findings(numa_nodes(cores, root))
    except (OSError, ValueError):
        yield Finding("ok", "cores", "the system does not say which are threads of one core, nor where memory lies")


def threads_finding(threads: int, physical: int, cores: int) -> Finding:
    """Whether torch's threads have a core each."""
    text = f"{threads} threads on {physical} physical cores ({cores} logical)"
    if threads > physical:
        return Finding("warn", "threads", text, f"set OMP_NUM_THREADS={physical}: two threads of one core share it")
    return Finding("ok", "threads", text)


def numa_findings(nodes: int) -> Iterator[Finding]:
    """Whether threads and memory may lie on different nodes."""
    if nodes > 1:
        text = f"threads may run on {nodes} memory nodes: times depend on where memory lies"
        yield Finding("warn", "memory nodes", text, "numactl --cpunodebind=0 --membind=0, here and in training")


def _clock(root: Path) -> Finding:
    try:
        governor = frequency_governor(root)
    except OSError:
        return Finding("ok", "clock", f"the system does not say how it is governed{_turbo(root)}")
    text = f"governor {governor}{_turbo(root)}"
    if governor in ("performance", "schedutil"):
        return Finding("ok", "clock", text)
    return Finding("warn", "clock", f"{text}: clocks rise late", "cpupower frequency-set -g performance")


def _turbo(root: Path) -> str:
    try:
        return f", turbo {turbo(root)}"
    except OSError:
        return ""


def memory_finding(free_bytes: float) -> Finding:
    """Whether there is room for the inputs of large layers."""
    if free_bytes == math.inf:
        return Finding("warn", "memory", "the system does not say how much is free")
    text = f"{format_bytes(free_bytes)} available"
    if free_bytes < MIN_FREE_BYTES:
        return Finding("warn", "memory", text, f"large layers need more than {format_bytes(MIN_FREE_BYTES)}")
    return Finding("ok", "memory", text)


def _memory(root: Path) -> Iterator[Finding]:
    try:
        limits = [limit.limit_bytes for limit in memory_limits(root)]
    except (OSError, ValueError) as error:
        yield Finding("warn", "memory", f"the container's limit cannot be read: {error}")
    else:
        if limits:
            yield Finding("ok", "memory", f"the container may use {format_bytes(min(limits))}")
    try:
        yield Finding("ok", "memory", f"huge pages without being asked for: {huge_pages(root)}")
    except (OSError, ValueError):
        return
