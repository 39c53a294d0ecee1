"""What a look at a machine means for measuring on it: each condition, its level and its words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from profiler.backends import BACKENDS
from profiler.checks import check_machine
from profiler.cpu_checks import (
    cpu_findings,
    heavy_findings,
    load_finding,
    memory_finding,
    numa_findings,
    quota_finding,
    stolen_findings,
    threads_finding,
)
from profiler.cuda_checks import device_findings, driver_findings, mps_findings, rank_findings
from profiler.findings import Finding
from profiler.machine_state import BusyProcess
from profiler.nvml_state import DeviceState


@pytest.mark.parametrize("device", sorted(BACKENDS))
def test_the_check_of_a_machine_never_fails_and_names_remedies(device: str) -> None:
    findings = check_machine(device)
    subjects = {finding.subject for finding in findings}
    assert {"torch", "load", "cores", "clock", "memory", "scipy", "cupy"} <= subjects
    for finding in findings:
        assert finding.text
        if finding.level in ("refuse", "fail"):
            assert finding.remedy


def test_a_system_that_says_nothing_is_checked_all_the_same(tmp_path: Path) -> None:
    findings = list(cpu_findings(4, tmp_path))
    assert {"load", "cores", "clock", "memory"} == {finding.subject for finding in findings}


def levels(findings: Iterable[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def test_a_busy_machine_a_small_quota_and_little_memory_are_warned_of() -> None:
    assert levels([load_finding(0.4, 2), load_finding(0.6, 2)]) == ["ok", "warn"]
    assert levels([quota_finding(None, 8), quota_finding(8, 8), quota_finding(2.5, 8)]) == ["ok", "ok", "warn"]
    assert "OMP_NUM_THREADS=2" in quota_finding(2.5, 8).remedy
    memory = [memory_finding(2.0**33), memory_finding(2.0**30), memory_finding(float("inf"))]
    assert levels(memory) == ["ok", "warn", "warn"]
    assert levels([threads_finding(2, 2, 4), threads_finding(4, 2, 4)]) == ["ok", "warn"]
    assert levels([*numa_findings(1), *numa_findings(2)]) == ["warn"]
    assert levels([*stolen_findings(0.01), *stolen_findings(0.3)]) == ["warn"]


def test_the_busiest_processes_are_named() -> None:
    heavy = tuple(BusyProcess(pid, "train", 4.0 - pid) for pid in range(1, 5))
    (finding,) = heavy_findings(heavy)
    assert finding.text == "4 other processes take 6.0 cores"
    assert finding.remedy == "wait for train (1), train (2), train (3) and 1 more"
    assert next(heavy_findings(heavy[:1])).text == "another process takes 3.0 cores"
    assert list(heavy_findings(())) == []


QUIET = DeviceState(
    utilization=0.0,
    processes=(7,),
    power_limit_w=700.0,
    default_power_limit_w=700.0,
    application_sm_clock_hz=1.98e9,
    default_application_sm_clock_hz=1.98e9,
    mig=False,
    reasons=("idle",),
    uncorrected_errors=0,
    memory_needs_repair=False,
    pcie_width=16.0,
    max_pcie_width=16.0,
    gpu_temperature_c=40.0,
    slowdown_temperature_c=90.0,
)

SPOILED = [
    (DeviceState(), []),
    (QUIET, []),
    (DeviceState(processes=(7, 8, 9)), [("warn", "2 other processes on it")]),
    (DeviceState(processes=(8,)), [("warn", "1 other process on it")]),
    (DeviceState(utilization=0.6), [("refuse", "it is busy 60% of the time with the kernels of others")]),
    (DeviceState(utilization=0.1), [("warn", "it is busy 10% of the time with the kernels of others")]),
    (DeviceState(utilization=0.02), []),
    (
        DeviceState(processes=(), used_memory_bytes=8.0 * 2**30, total_memory_bytes=16.0 * 2**30),
        [("warn", "8 GiB of its memory are held by processes that cannot be seen")],
    ),
    (DeviceState(processes=(7,), used_memory_bytes=8.0 * 2**30, total_memory_bytes=16.0 * 2**30), []),
    (
        DeviceState(mps_processes=(8,)),
        [("warn", "1 other process on it"), ("warn", "processes share it through MPS")],
    ),
    (DeviceState(compute_mode="prohibited"), [("fail", "its compute mode forbids every program")]),
    (DeviceState(mig=True), [("warn", "an instance of a divided device (MIG) is used")]),
    (DeviceState(instance=True), [("warn", "an instance of a divided device (MIG) is used")]),
    (DeviceState(virtualization="vGPU"), [("warn", "it is a virtual part of a device (vGPU)")]),
    (DeviceState(virtualization="passthrough"), []),
    (
        DeviceState(power_limit_w=500, default_power_limit_w=700),
        [("warn", "its power is limited to 500 W of 700 W")],
    ),
    (
        DeviceState(application_sm_clock_hz=1.2e9, default_application_sm_clock_hz=1.41e9),
        [("warn", "its clock is set to 1200 MHz instead of 1410 MHz")],
    ),
    (
        DeviceState(reasons=("hardware thermal slowdown",)),
        [("refuse", "its clock is held down: hardware thermal slowdown")],
    ),
    (DeviceState(reasons=("software power cap", "reason 0x1000")), []),
    (
        DeviceState(gpu_temperature_c=87, slowdown_temperature_c=90),
        [("warn", "it has 87 C and slows itself down at 90 C")],
    ),
    (
        DeviceState(uncorrected_errors=2),
        [("refuse", "2 errors of its memory could not be corrected since it was reset")],
    ),
    (
        DeviceState(memory_needs_repair=True),
        [("refuse", "a part of its memory waits to be replaced or could not be")],
    ),
    (
        DeviceState(pcie_width=8, max_pcie_width=16),
        [("warn", "its PCIe link has 8 of 16 lanes: copies are slower")],
    ),
    (DeviceState(nvlinks=(True, False)), [("ok", "1 of 2 NVLinks are active")]),
    (
        DeviceState(unread=("ecc could not be read: Not Supported", "mig could not be read: N/A")),
        [("ok", "NVML does not say: ecc, mig")],
    ),
]


@pytest.mark.parametrize(("state", "expected"), SPOILED)
def test_what_spoils_a_calibration_of_a_device_is_refused_or_labelled(
    state: DeviceState, expected: list[tuple[str, str]]
) -> None:
    found = list(device_findings("cuda 0", state, own_process=7))
    assert [(finding.level, finding.text) for finding in found] == expected


def test_a_driver_older_than_the_cuda_of_torch_is_warned_of() -> None:
    state = DeviceState(driver="535.104.05", cuda_driver="12.2")
    assert levels(driver_findings("cuda 0", state, "12.2")) == ["ok"]
    assert levels(driver_findings("cuda 0", state, "11.8")) == ["ok"]
    assert levels(driver_findings("cuda 0", state, "12.8")) == ["warn"]
    assert levels(driver_findings("cuda 0", DeviceState(), "12.8")) == []


def test_a_server_that_shares_a_device_and_a_share_of_it_are_warned_of(tmp_path: Path) -> None:
    assert list(mps_findings({}, tmp_path)) == []
    (tmp_path / "tmp/nvidia-mps").mkdir(parents=True)
    (tmp_path / "tmp/nvidia-mps/control").touch()
    assert levels(mps_findings({}, tmp_path)) == ["warn"]
    assert levels(mps_findings({"CUDA_MPS_PIPE_DIRECTORY": "/elsewhere"}, tmp_path)) == []
    assert levels(mps_findings({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}, tmp_path)) == ["warn", "warn"]
    assert levels(mps_findings({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}, tmp_path)) == ["warn"]


@pytest.mark.parametrize(
    ("environ", "device", "visible", "refused"),
    [
        ({}, "cuda", 8, False),
        ({"LOCAL_WORLD_SIZE": "1"}, "cuda", 8, False),
        ({"LOCAL_WORLD_SIZE": "8"}, "cuda", 8, True),
        ({"LOCAL_WORLD_SIZE": "8"}, "cuda", 1, False),  # each rank sees a device of its own
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "cpu", 0, True),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, "cuda", 4, True),
        ({"SLURM_STEP_TASKS_PER_NODE": "1,2"}, "cuda", 4, False),
        ({"LOCAL_WORLD_SIZE": "8"}, "simulated", 0, False),
    ],
)
def test_ranks_that_would_measure_one_device_are_refused(
    environ: dict[str, str], device: str, visible: int, refused: bool
) -> None:
    assert levels(rank_findings(environ, device, visible)) == ["refuse"] * refused
