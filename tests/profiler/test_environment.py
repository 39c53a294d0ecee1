"""What the machine says of itself, and what that means for measuring."""

from __future__ import annotations

import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from oracle.errors import NoDevice, UnknownName
from profiler import environment
from profiler.backends.base import open_backend
from profiler.environment import READ_ERRORS, nvml_values, read_environment
from profiler.nvml_state import DeviceState

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


LIGHT = [
    "profiler.environment",
    "profiler.checks",
    "profiler.case",
    "profiler.measurement",
    "profiler.stopping",
    "profiler.run",
    "profiler.visit",
    "profiler.nvml",
    "profiler.nvml_state",
    "profiler.state_sampler",
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


def test_what_nvml_says_is_split_into_what_must_match_and_what_was_so_at_the_time() -> None:
    state = DeviceState(
        driver="550.54.15", mig=False, power_limit_w=700.0, power_w=412.5, reasons=(), nvlinks=(True, False)
    )
    identity, now = nvml_values(state)
    assert identity == {"driver": "550.54.15", "mig": "False", "power_limit_w": "700", "nvlinks": "1 of 2"}
    assert now == {"power_w": "412.5", "clock_reasons": "none"}
    assert nvml_values(DeviceState()) == ({}, {})


@needs_torch
def test_a_cuda_environment_without_a_driver_has_one_note_of_nvml() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert sum("NVML" in note for note in read_environment("cuda").notes) == 1
