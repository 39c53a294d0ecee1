"""What Linux says of a machine, read from made-up files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from profiler.machine_state import (
    MemoryLimit,
    available_memory_bytes,
    busy_processes,
    core_quota,
    core_set,
    frequency_governor,
    huge_pages,
    is_virtual,
    memory_limits,
    numa_nodes,
    physical_cores,
    stolen_s,
    throttle_count,
    turbo,
)
from profiler.this_machine import own_cores

Write = Callable[[str, str], None]
CPUS = "sys/devices/system/cpu"
GROUPS = "sys/fs/cgroup"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file under a root of one's own."""

    def put(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return put


def test_two_threads_of_one_core_are_one_core(tmp_path: Path, write: Write) -> None:
    for core in range(4):
        write(f"{CPUS}/cpu{core}/topology/thread_siblings_list", f"{core % 2},{core % 2 + 2}\n")
    assert physical_cores(range(4), tmp_path) == 2
    assert physical_cores([0, 1], tmp_path) == 2
    assert physical_cores([0, 2], tmp_path) == 1


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("intel_pstate/no_turbo", "1\n", "off"),
        ("intel_pstate/no_turbo", "0\n", "on"),
        ("cpufreq/boost", "1\n", "on"),
        ("cpufreq/boost", "0\n", "off"),
    ],
)
def test_turbo_is_said_in_two_ways(tmp_path: Path, write: Write, file: str, text: str, expected: str) -> None:
    write(f"{CPUS}/{file}", text)
    assert turbo(tmp_path) == expected


def test_what_a_system_does_not_say_is_an_error_that_a_note_is_made_of(tmp_path: Path) -> None:
    for question in (turbo, frequency_governor, huge_pages, is_virtual):
        with pytest.raises(OSError, match="No such file"):
            question(tmp_path)
    with pytest.raises(OSError, match="names no memory nodes"):
        numa_nodes(frozenset({0}), tmp_path)
    assert (stolen_s(frozenset({0}), tmp_path), throttle_count(tmp_path)) == (None, None)
    assert (core_quota(tmp_path), list(memory_limits(tmp_path))) == (None, [])
    assert available_memory_bytes(tmp_path) == float("inf")


def test_memory_nodes_are_those_of_the_own_cores(tmp_path: Path, write: Write) -> None:
    write("sys/devices/system/node/node0/cpulist", "0-3,8-11\n")
    write("sys/devices/system/node/node1/cpulist", "4-7,12-15\n")
    write("sys/devices/system/node/node2/cpulist", "\n")  # memory without cores
    assert numa_nodes(frozenset({1, 9}), tmp_path) == 1
    assert numa_nodes(frozenset({1, 5}), tmp_path) == 2


def test_huge_pages_and_virtual_machines_are_named(tmp_path: Path, write: Write) -> None:
    write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    write("proc/cpuinfo", "processor : 0\nflags\t\t: fpu vme hypervisor avx2\n")
    assert huge_pages(tmp_path) == "madvise"
    assert is_virtual(tmp_path)


def test_stolen_time_is_that_of_the_own_cores(tmp_path: Path, write: Write) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    lines = [f"cpu{core} 1 2 3 4 5 6 7 {stolen} 0 0" for core, stolen in enumerate((ticks, 3 * ticks, 100 * ticks))]
    write("proc/stat", "\n".join(["cpu 1 2 3 4 5 6 7 9999 0 0", *lines, "intr 5"]))
    assert stolen_s(frozenset({0, 1}), tmp_path) == 4.0


def test_slowdowns_for_heat_are_counted_over_all_cores(tmp_path: Path, write: Write) -> None:
    for core in range(3):
        write(f"{CPUS}/cpu{core}/thermal_throttle/core_throttle_count", f"{core}\n")
    assert throttle_count(tmp_path) == 3


def test_a_quota_is_read_from_both_versions_of_control_groups(tmp_path: Path, write: Write) -> None:
    assert core_quota(tmp_path) is None
    write(f"{GROUPS}/cpu/cpu.cfs_quota_us", "-1\n")
    write(f"{GROUPS}/cpu/cpu.cfs_period_us", "100000\n")
    assert core_quota(tmp_path) is None
    write(f"{GROUPS}/cpu/cpu.cfs_quota_us", "150000\n")
    assert core_quota(tmp_path) == 1.5
    write(f"{GROUPS}/cpu.max", "max 100000\n")
    assert core_quota(tmp_path) == 1.5
    write(f"{GROUPS}/cpu.max", "120000 100000\n")
    assert core_quota(tmp_path) == 1.2


def test_the_tightest_limit_of_all_groups_above_a_job_holds(tmp_path: Path, write: Write) -> None:
    write("proc/self/cgroup", "0::/system.slice/job_7/step_0\n")
    write(f"{GROUPS}/system.slice/job_7/step_0/cpu.max", "max 100000\n")
    write(f"{GROUPS}/system.slice/job_7/cpu.max", "400000 100000\n")
    write(f"{GROUPS}/system.slice/cpu.max", "800000 100000\n")
    assert core_quota(tmp_path) == 4.0


def test_a_quota_that_is_no_number_is_an_error(tmp_path: Path, write: Write) -> None:
    write(f"{GROUPS}/cpu.max", "some\n")
    with pytest.raises(ValueError, match="unpack"):
        core_quota(tmp_path)


def test_a_containers_memory_limit_bounds_what_is_available(tmp_path: Path, write: Write) -> None:
    write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:  2048 kB\n")
    assert available_memory_bytes(tmp_path) == 2**21
    write(f"{GROUPS}/memory.max", str(2**20))
    write(f"{GROUPS}/memory.current", str(2**19))
    assert available_memory_bytes(tmp_path) == 2**19


def test_files_that_a_container_caches_can_be_dropped(tmp_path: Path, write: Write) -> None:
    write(f"{GROUPS}/memory.max", "1000")
    write(f"{GROUPS}/memory.current", "900")
    write(f"{GROUPS}/memory.stat", "anon 100\ninactive_file 700\n")
    assert list(memory_limits(tmp_path)) == [MemoryLimit(1000, 200)]


def test_no_limit_is_written_as_a_huge_number_in_version_1(tmp_path: Path, write: Write) -> None:
    write("proc/self/cgroup", "4:memory:/box\n1:cpu,cpuacct:/box\n")
    write(f"{GROUPS}/memory/box/memory.limit_in_bytes", "9223372036854771712")
    write(f"{GROUPS}/memory/box/memory.usage_in_bytes", "5")
    write(f"{GROUPS}/memory/memory.limit_in_bytes", "4096")
    write(f"{GROUPS}/memory/memory.usage_in_bytes", "96")
    assert list(memory_limits(tmp_path)) == [MemoryLimit(4096, 96)]


def test_a_process_that_works_is_found_with_its_cores() -> None:
    worker = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline_s = time.monotonic() + 120
        found: list[int] = []
        while worker.pid not in found and time.monotonic() < deadline_s:
            found = [one.pid for one in busy_processes(0.2, 0.01)]
        assert worker.pid in found
        assert os.getpid() not in found
    finally:
        worker.kill()
        worker.wait()


def test_a_process_name_may_hold_brackets(tmp_path: Path, write: Write) -> None:
    write("proc/12/stat", "12 (a) b (c) R 1 1 1 0 -1 0 0 0 0 0 100 50 0 0 20 0 1 0 5 0 0")
    write("proc/13/stat", "13 (ended")
    assert [(one.pid, one.name, one.cores) for one in busy_processes(0.001, 0.0, tmp_path)] == [(12, "a) b (c", 0.0)]


def test_this_machine_has_cores_and_memory() -> None:
    assert own_cores()
    assert available_memory_bytes() > 0
    assert core_set("") == frozenset()
