"""What the machine says of itself, and what that means for measuring."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import util
from pathlib import Path

import pytest

from oracle.errors import MissingDependency, NoDevice, UnknownName
from profiler import environment
from profiler.backends import BACKENDS
from profiler.backends.base import open_backend
from profiler.checks import (
    Finding,
    check_machine,
    device_findings,
    load_finding,
    memory_finding,
    quota_finding,
)
from profiler.environment import READ_ERRORS, available_memory_bytes, read_environment
from profiler.nvml import DeviceState, device_state

HAS_TORCH = util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
REPOSITORY = Path(environment.__file__).resolve().parents[1]


def test_one_machine_has_one_validity_key_whatever_its_state() -> None:
    first, second = read_environment(), read_environment()
    assert first.validity_key == second.validity_key
    assert first.state["load_average"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_cannot_be_read_is_a_note_and_never_an_error(device: str) -> None:
    found = read_environment(device)
    assert {"cpu", "cores", "os", "python"} <= set(found.identity)
    for note in found.notes:
        assert "\n" not in note
        assert note.endswith("not installed") or "could not be read: " in note


@pytest.mark.parametrize("error", READ_ERRORS)
def test_every_way_in_which_a_probe_fails_becomes_a_note(error: type[Exception]) -> None:
    def probe() -> str:
        raise error("gone")

    notes: list[str] = []
    assert environment._read({"clock": probe, "cores": lambda: "2"}, notes) == {"cores": "2"}
    assert notes == ["clock could not be read: gone"]


def test_an_environment_variable_that_changes_kernels_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    before = read_environment().validity_key
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert read_environment().validity_key != before
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv("SOME_SECRET", "hunter2")
    assert read_environment().validity_key == before
    assert "hunter2" not in str(read_environment())


def test_the_host_is_known_by_a_hash_only() -> None:
    import platform

    found = read_environment()
    assert len(found.state["host"]) == 8
    assert platform.node() not in found.state.values()


@needs_torch
def test_the_number_of_threads_is_part_of_the_identity() -> None:
    code = "from profiler.environment import read_environment as r; print(r().identity['threads'], r().validity_key)"
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"OMP_NUM_THREADS": threads, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for threads in ("1", "2")
    ]
    assert [threads for threads, _ in found] == ["1", "2"]
    assert found[0][1] != found[1][1]


def test_available_memory_is_positive() -> None:
    assert available_memory_bytes() > 0


LIGHT = [
    "profiler.environment",
    "profiler.checks",
    "profiler.case",
    "profiler.measurement",
    "profiler.stopping",
    "profiler.run",
    "profiler.visit",
    "profiler.nvml",
    "profiler.backends.base",
]


def test_light_modules_load_no_heavy_library() -> None:
    code = f"import sys, {', '.join(LIGHT)}; print(sorted({{'torch', 'pynvml', 'cupy', 'scipy'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_a_missing_torch_is_named_with_its_extra(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch here', name='torch')")
    code = (
        "from oracle.errors import MissingDependency\n"
        "from profiler.backends.base import open_backend\n"
        "from profiler.environment import read_environment\n"
        "try: open_backend('cpu')\n"
        "except MissingDependency as error: print(error)\n"
        "print(read_environment().notes[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "torch is not installed; pip install 'stepgauge[measure]'",
        "torch is not installed",
    ]


def test_a_device_that_is_not_there_is_said_in_one_line() -> None:
    with pytest.raises(UnknownName, match="unknown device 'cup'; did you mean 'cpu'"):
        open_backend("cup")
    if HAS_TORCH:
        with pytest.raises(NoDevice, match="there is one cpu device, number 0, not 3"):
            open_backend("cpu", 3)


@needs_torch
def test_cuda_without_a_device_says_why() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(NoDevice, match="no cuda device can be used: this torch"):
        open_backend("cuda")


@needs_torch
def test_torch_for_amd_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "hip", "6.2")
    with pytest.raises(NoDevice, match=r"AMD ROCm 6.2, which is not supported"):
        open_backend("cuda")


def test_nvml_without_a_driver_is_an_error_of_ours() -> None:
    with pytest.raises((NoDevice, MissingDependency), match=r"^[^\n]+$"):
        device_state("GPU-00000000-0000-0000-0000-000000000000")


@pytest.mark.parametrize("device", sorted(BACKENDS))
def test_the_check_of_a_machine_never_fails_and_names_remedies(device: str) -> None:
    findings = check_machine(device)
    subjects = {finding.subject for finding in findings}
    assert {"torch", "load", "cores", "clock", "memory", "scipy", "cupy"} <= subjects
    for finding in findings:
        assert finding.text
        if finding.level == "fail":
            assert finding.remedy


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def test_a_busy_machine_a_small_quota_and_little_memory_are_warned_of() -> None:
    assert levels([load_finding(0.4, 2), load_finding(0.6, 2)]) == ["ok", "warn"]
    assert levels([quota_finding(None, 8), quota_finding(8, 8), quota_finding(2.5, 8)]) == ["ok", "ok", "warn"]
    assert "OMP_NUM_THREADS=2" in quota_finding(2.5, 8).remedy
    assert levels([memory_finding(2.0**33), memory_finding(2.0**30), memory_finding(float("inf"))]) == [
        "ok",
        "warn",
        "warn",
    ]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (DeviceState(), []),
        (DeviceState(processes=(7,), power_limit_w=700, default_power_limit_w=700, mig=False), []),
        (DeviceState(processes=(7, 8, 9)), ["2 other processes use it"]),
        (DeviceState(power_limit_w=500, default_power_limit_w=700), ["its power is limited to 500 W of 700 W"]),
        (DeviceState(mig=True), ["it is cut into instances (MIG)"]),
    ],
)
def test_a_shared_limited_or_divided_device_is_warned_of(state: DeviceState, expected: list[str]) -> None:
    assert [finding.text for finding in device_findings("cuda 0", state, own_process=7)] == expected


@pytest.fixture
def control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes control files where the code looks for them."""
    monkeypatch.setattr(environment, "CONTROL_GROUP", tmp_path)

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


def test_a_quota_is_read_from_both_versions_of_control_groups(control_group: Callable[[str, str], None]) -> None:
    assert environment.core_quota() is None
    control_group("cpu/cpu.cfs_quota_us", "-1\n")
    control_group("cpu/cpu.cfs_period_us", "100000\n")
    assert environment.core_quota() is None
    control_group("cpu/cpu.cfs_quota_us", "150000\n")
    assert environment.core_quota() == 1.5
    control_group("cpu.max", "max 100000\n")
    assert environment.core_quota() is None
    control_group("cpu.max", "250000 100000\n")
    assert environment.core_quota() == 2.5


def test_a_containers_memory_limit_bounds_what_is_available(control_group: Callable[[str, str], None]) -> None:
    control_group("memory.max", str(2**20))
    control_group("memory.current", str(2**19))
    assert available_memory_bytes() == 2**19
