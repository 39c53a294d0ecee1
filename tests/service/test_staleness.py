"""A calibration that may not hold any more says so wherever it is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from profiler.installed import Installed, installed
from profiler.this_machine import cpu_model, usable_cores
from service.staleness import STALE_DAYS, changes, stale_notes

Stepgauge = Callable[..., Any]
NOW = datetime.now(UTC).isoformat()
HERE = Installed("Xeon", 8, ("NVIDIA H200",), {"torch": "2.13.0", "driver": "580.1", "os": "Linux 6.1"})
CPU = {"cpu": "Xeon", "cores": "8", "torch": "2.13.0", "os": "Linux 6.1", "turbo": "on"}
GPU = {"gpu": "NVIDIA H200", "cpu": "Xeon", "cores": "8", "torch": "2.13.0", "driver": "580.1"}


@pytest.mark.parametrize("environment", [CPU, GPU, GPU | {"gpu": "NVIDIA H200 MIG 1g.18gb"}, {}, {"device": "any"}])
def test_the_same_machine_with_the_same_versions_needs_no_note(environment: dict[str, str]) -> None:
    assert stale_notes(environment, NOW, HERE) == ()


def test_another_version_on_the_same_machine_makes_a_calibration_stale() -> None:
    assert stale_notes(CPU | {"torch": "2.12.1"}, NOW, HERE) == (
        "stale: torch was 2.12.1 when this was calibrated, now it is 2.13.0; calibrate again",
    )
    assert len(stale_notes(GPU | {"torch": "2.12.1", "driver": "550.54"}, NOW, HERE)) == 2


@pytest.mark.parametrize(
    "environment",
    [
        CPU | {"torch": "2.12.1", "cores": "4"},
        CPU | {"torch": "2.12.1", "cpu": "EPYC"},
        GPU | {"torch": "2.12.1", "gpu": "Tesla V100-SXM2-16GB"},
    ],
)
def test_a_calibration_of_another_machine_is_not_compared(environment: dict[str, str]) -> None:
    assert stale_notes(environment, NOW, HERE) == ()


def test_what_is_not_installed_here_is_not_compared() -> None:
    laptop = Installed("Xeon", 8, (), {"os": "Linux 6.1"})
    assert stale_notes(CPU | {"torch": "2.12.1"}, NOW, laptop) == ()


def test_an_old_calibration_says_its_age() -> None:
    then = datetime.now(UTC) - timedelta(days=STALE_DAYS + 3)
    (note,) = stale_notes(CPU, then.isoformat(), HERE)
    assert note == f"the calibration is {STALE_DAYS + 3} days old; measure again before you rely on it"
    assert stale_notes(CPU, (then + timedelta(days=5)).isoformat(), HERE) == ()


def test_a_variable_that_was_not_set_is_a_change_of_the_whole_identity() -> None:
    now = CPU | {"OMP_WAIT_POLICY": "active"}
    assert changes(CPU, now) == ()
    assert changes(CPU, now, CPU.keys() | now.keys()) == (
        "stale: OMP_WAIT_POLICY was unknown when this was calibrated, now it is active; calibrate again",
    )


def test_the_driver_describes_itself_in_files(tmp_path: Path) -> None:
    nvidia = tmp_path / "proc/driver/nvidia"
    (nvidia / "gpus/0000:3b:00.0").mkdir(parents=True)
    (nvidia / "gpus/0000:5e:00.0").mkdir()
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (root@builder)\n"
    (nvidia / "version").write_text(f"{line}GCC version:  gcc 12.2.0\n")
    (nvidia / "gpus/0000:3b:00.0/information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 16\n")
    here = installed(tmp_path)
    assert here.gpus == ("NVIDIA H200",)
    assert here.versions["driver"] == "580.159.03"
    (nvidia / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct 27\n")
    assert installed(tmp_path).versions["driver"] == "470.82.01"
    assert installed(tmp_path / "elsewhere").gpus == ()


def test_torch_is_of_the_version_that_it_gives_itself() -> None:
    torch = pytest.importorskip("torch")
    assert installed().versions["torch"] == torch.__version__


@pytest.fixture
def stale_store(stepgauge: Stepgauge, store: Path, tmp_path: Path) -> Path:
    """A store with a calibration that was taken on this machine under another system."""
    exported = json.loads(stepgauge("export", "sim", "--db", store).out)
    exported["environment"] = {"cpu": cpu_model(), "cores": str(usable_cores()), "os": "Linux 0.1"}
    (tmp_path / "old.json").write_text(json.dumps(exported | {"name": "old"}))
    assert stepgauge("load", tmp_path / "old.json", "--db", store).code == 0
    return store


@pytest.mark.parametrize(
    "command",
    [("show", "old"), ("predict", "resnet50", "--batch", 8, "--calibration", "old"), ("compare", "sim", "old")],
)
def test_every_use_of_a_stale_calibration_says_so(
    stepgauge: Stepgauge, stale_store: Path, command: tuple[object, ...]
) -> None:
    printed = stepgauge(*command, "--json", "--db", stale_store)
    assert printed.code == 0, printed.err
    assert any("stale: os was Linux 0.1" in note for note in json.loads(printed.out)["notes"])
    assert "stale: os was Linux 0.1 when this was calibrated" in stepgauge(*command, "--db", stale_store).out


def test_a_list_says_which_calibrations_are_stale(stepgauge: Stepgauge, stale_store: Path) -> None:
    listed = json.loads(stepgauge("list", "--json", "--db", stale_store).out)["calibrations"]
    assert {item["name"]: len(item["stale"]) for item in listed} == {"sim": 0, "old": 1}
    assert all("environment" not in item for item in listed)
    assert "old: stale: os was Linux 0.1" in stepgauge("list", "--db", stale_store).out
