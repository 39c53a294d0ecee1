"""What Linux says of the CPUs, the memory and the limits of a container.

Every function takes the root of the file system, so that any machine can be described by a few files. A container has a
namespace of control groups of its own, in which its limits lie at the top; a batch system such as Slurm puts a job into
a group further down, whose limits and those of the groups above it all hold (Linux, Documentation/admin-guide/
cgroup-v2.rst). So all of them are looked at, in both versions of control groups.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from profiler.this_machine import ROOT

_CPUS = "sys/devices/system/cpu"
UNLIMITED_BYTES = 2.0**60
"""Limits of memory from here on mean that there is none (version 1 writes the largest number of whole pages)."""


def core_set(text: str) -> frozenset[int]:
    """A list of cores as Linux writes it.

    >>> sorted(core_set("0-2,7"))
    [0, 1, 2, 7]
    """
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def physical_cores(cores: Iterable[int], root: Path = ROOT) -> int:
    """How many physical cores some cores are; two threads of one (SMT) count once.

    Raises:
        OSError: the kernel does not say.
    """
    siblings = (root / _CPUS / f"cpu{core}/topology/thread_siblings_list" for core in cores)
    return len({core_set(path.read_text()) for path in siblings})


def turbo(root: Path = ROOT) -> str:
    """`on` or `off`: whether clocks may rise above the one that is guaranteed.

    Raises:
        OSError: the kernel does not say.
    """
    disabled = root / _CPUS / "intel_pstate/no_turbo"
    if disabled.exists():
        return "off" if disabled.read_text().strip() == "1" else "on"
    return "on" if (root / _CPUS / "cpufreq/boost").read_text().strip() == "1" else "off"


def frequency_governor(root: Path = ROOT) -> str:
    """How the first core's clock is governed.

    Raises:
        OSError: the kernel does not say.
    """
    return (root / _CPUS / "cpu0/cpufreq/scaling_governor").read_text().strip()


def huge_pages(root: Path = ROOT) -> str:
    """When memory comes in huge pages without being asked for: `always`, `madvise` or `never`.

    Raises:
        OSError, ValueError: the kernel does not say.
    """
    text = (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text()
    found = re.search(r"\[(\w+)\]", text)
    if not found:
        raise ValueError(f"it says {text.strip()!r}")
    return found[1]


def numa_nodes(cores: frozenset[int], root: Path = ROOT) -> int:
    """How many memory nodes some cores belong to.

    Raises:
        OSError: the kernel does not say.
    """
    lists = list((root / "sys/devices/system/node").glob("node[0-9]*/cpulist"))
    if not lists:
        raise FileNotFoundError(2, "the kernel names no memory nodes")
    return sum(bool(core_set(path.read_text()) & cores) for path in lists)


def is_virtual(root: Path = ROOT) -> bool:
    """Whether this is a virtual machine, as its CPU says.

    Raises:
        OSError: the kernel does not say.
    """
    flags = re.search(r"^flags\s*:(.*)$", (root / "proc/cpuinfo").read_text(), re.MULTILINE)
    return flags is not None and "hypervisor" in flags[1].split()


def stolen_s(cores: frozenset[int], root: Path = ROOT) -> float | None:
    """CPU time of some cores, in seconds since the start, that the hypervisor gave to others; None where unknown."""
    try:
        text = (root / "proc/stat").read_text()
        ticks = [line.split() for line in text.splitlines() if re.match(r"cpu\d", line)]
        return sum(int(fields[8]) for fields in ticks if int(fields[0][3:]) in cores) / _ticks_per_s()
    except (OSError, ValueError, IndexError):
        return None


def throttle_count(root: Path = ROOT) -> int | None:
    """How often cores have slowed down for heat since the start; None where the kernel does not count it."""
    try:
        counters = list((root / _CPUS).glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))
        return sum(int(path.read_text()) for path in counters) if counters else None
    except (OSError, ValueError):
        return None


def _ticks_per_s() -> int:
    return os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class BusyProcess:
    """A process that takes CPU time: `cores` is how many cores' worth."""

    pid: int
    name: str
    cores: float


def busy_processes(over_s: float, least: float, root: Path = ROOT) -> tuple[BusyProcess, ...]:
    """Other processes that are at work now, the busiest first.

    Args:
        over_s: how long to look.
        least: cores' worth of time below which a process is left out.
        root: of the file system.
    """
    before = _cpu_seconds(root)
    begun_s = time.monotonic()
    time.sleep(over_s)
    after, elapsed_s = _cpu_seconds(root), time.monotonic() - begun_s
    found = [
        BusyProcess(pid, name, (seconds - before[pid][1]) / elapsed_s)
        for pid, (name, seconds) in after.items()
        if pid in before and before[pid][0] == name and pid != os.getpid()
    ]
    return tuple(sorted((one for one in found if one.cores >= least), key=lambda one: -one.cores))


def _cpu_seconds(root: Path) -> dict[int, tuple[str, float]]:
    """Name and CPU time of every process that can be seen."""
    found = {}
    for path in (root / "proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text(errors="replace")
            # A name may hold spaces and brackets; its last bracket ends it.
            name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
            found[int(path.parent.name)] = (name, (int(fields[11]) + int(fields[12])) / _ticks_per_s())
        except (OSError, ValueError, IndexError):
            continue  # it ended meanwhile, or is hidden
    return found


def control_folders(controller: str = "", root: Path = ROOT) -> Iterator[Path]:
    """The control groups that bind this process, from its own up to the top.

    Args:
        controller: of version 1, such as `memory`; empty for version 2.
        root: of the file system.
    """
    own = PurePosixPath()
    try:
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(",") and ".." not in path:
                own = PurePosixPath(path.lstrip("/"))
    except (OSError, ValueError):
        pass  # the top is looked at in any case
    for folder in (own, *own.parents) if own.parts else (own,):
        yield root / "sys/fs/cgroup" / controller / folder


def core_quota(root: Path = ROOT) -> float | None:
    """Cores' worth of time that the container or job may use; None without a limit.

    Raises:
        OSError, ValueError: a limit that cannot be read.
    """
    quotas = []
    for folder in control_folders("", root):
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
            quotas.append(math.inf if quota == "max" else int(quota) / int(period))
    for folder in control_folders("cpu", root):
        if (folder / "cpu.cfs_quota_us").exists() and (folder / "cpu.cfs_period_us").exists():
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            quotas.append(math.inf if quota_us < 0 else quota_us / int((folder / "cpu.cfs_period_us").read_text()))
    least = min(quotas, default=math.inf)
    return None if least == math.inf else least


@dataclass(frozen=True)
class MemoryLimit:
    """What a control group may use and what it uses, in bytes, without the files that it caches and can drop."""

    limit_bytes: float
    used_bytes: float


def memory_limits(root: Path = ROOT) -> Iterator[MemoryLimit]:
    """The limits on this process's memory.

    Raises:
        OSError, ValueError: a limit that cannot be read.
    """
    versions = (("", "memory.max", "memory.current"), ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"))
    for controller, limit_name, used_name in versions:
        for folder in control_folders(controller, root):
            if not (folder / limit_name).exists() or not (folder / used_name).exists():
                continue
            limit = (folder / limit_name).read_text().strip()
            if limit != "max" and float(limit) < UNLIMITED_BYTES:
                used = float((folder / used_name).read_text())
                yield MemoryLimit(float(limit), max(0.0, used - _droppable_bytes(folder)))


def _droppable_bytes(folder: Path) -> float:
    """Cached files that the kernel drops before it refuses memory."""
    if not (folder / "memory.stat").exists():
        return 0.0
    found = re.search(r"^(?:total_)?inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def available_memory_bytes(root: Path = ROOT) -> float:
    """Memory that can be taken without swapping, within the limits of the container; infinite where unknown."""
    available = [math.inf]
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
        if found:
            available.append(int(found[1]) * 1024.0)
        available += [limit.limit_bytes - limit.used_bytes for limit in memory_limits(root)]
    except (OSError, ValueError):
        pass  # no limit is known then
    return max(0.0, min(available))
