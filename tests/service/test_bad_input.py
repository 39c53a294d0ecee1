"""Bad input ends in one line that says what is possible, and exit code 2."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oracle.constants import Calibration
from oracle.machine import load_cluster
from service.predicting import validity_notes

Stepgauge = Callable[..., Any]

CLUSTER = """
name: two
device: simulated device
tiers:
  - {name: node, devices: 2, link: {latency: 9us, bandwidth: 50GB/s}}
"""


def assert_refused(ran: Any, *texts: str) -> None:
    """One line on standard error, nothing on standard output, exit code 2."""
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1, ran.err
    for text in texts:
        assert text in ran.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("resnet51", "--batch", 8), "did you mean 'resnet50'?"),
        (("res\nnet", "--batch", 8), "unknown model"),
        (("resnet50", "--batch", 0), "--batch must be at least 1, not 0"),
        (("resnet50", "--batch-per-device", -3), "--batch-per-device must be at least 1, not -3"),
        (("resnet50", "--batch", 8, "--devices", "0", "--link", "1us,1GB/s"), "--devices must be at least 1, not 0"),
        (("resnet50", "--batch", 8, "--devices", "two"), "whole numbers between commas"),
        (("resnet50", "--batch", 8, "--batch-per-device", 8), "not both"),
        (("resnet50",), "give a batch"),
        (("resnet50", "--batch", 8, "--devices", "2"), "2 devices need a network"),
        (("resnet50", "--batch", 8, "--devices", "2", "--link=-9us,50GB/s"), "latency"),
        (("resnet50", "--batch", 8, "--devices", "2", "--link", "9us,-50GB/s"), "bandwidth"),
        (("resnet50", "--batch", 8, "--devices", "2", "--link", "9us,0GB/s"), "bandwidth"),
        (("resnet50", "--batch", 8, "--devices", "2", "--link", "fast"), "latency"),
        (("resnet50", "--batch", 8, "--devices", "2", "--cluster", "/no/such.yaml"), "/no/such.yaml"),
        (("resnet50", "--batch", 8, "--strategy", "dta"), "did you mean 'data'?"),
        (("resnet50", "--batch", 8, "--precision", "fp64"), "unknown precision 'fp64'"),
        (("resnet50", "--batch", 8, "--precision", "bf16"), "bf16"),
        (("resnet50", "--batch", 8, "--calibration", "simm"), "did you mean 'sim'?"),
        (("resnet50", "--batch", 8, "--dataset-samples", 0), "at least one sample"),
        (("/no/such.json", "--batch", 8), "/no/such.json"),
    ],
)
def test_predict_refuses(stepgauge: Stepgauge, store: Path, arguments: tuple[object, ...], text: str) -> None:
    assert_refused(stepgauge("predict", *arguments, "--db", store), text)


def test_more_devices_than_the_cluster_has_are_refused(stepgauge: Stepgauge, store: Path, tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(CLUSTER)
    predict = ("predict", "resnet50", "--batch", 64, "--cluster", tmp_path / "two.yaml", "--db", store, "--devices")
    assert stepgauge(*predict, "2").code == 0
    assert_refused(stepgauge(*predict, "4"), "2 devices")


def test_a_cluster_of_other_devices_is_noted(stepgauge: Stepgauge, store: Path, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(CLUSTER.replace("simulated device", "Tesla V100"))
    ran = stepgauge("predict", "resnet50", "--batch", 8, "--cluster", tmp_path / "other.yaml", "--db", store)
    assert ran.code == 0
    assert "the cluster has Tesla V100, but the calibration is of simulated device" in ran.out


def test_the_note_on_other_devices_comes_before_those_of_the_calibration(
    make_calibration: Callable[..., Calibration], tmp_path: Path
) -> None:
    (tmp_path / "other.yaml").write_text(CLUSTER.replace("simulated device", "Tesla V100"))
    notes = validity_notes(make_calibration(), load_cluster(tmp_path / "other.yaml"))
    assert notes[:2] == (
        "the cluster has Tesla V100, but the calibration is of Simulated 1",
        "the machine was not idle",
    )


def test_predicting_without_a_calibration_says_how_to_get_one(stepgauge: Stepgauge, tmp_path: Path) -> None:
    assert_refused(stepgauge("predict", "resnet50", "--batch", 8, "--db", tmp_path / "empty.sqlite"), "calibrate")


def _first_fit(values: dict[str, Any]) -> dict[str, Any]:
    fit: dict[str, Any] = values["fits"][0]
    return fit


def _missing(values: dict[str, Any]) -> None:
    _first_fit(values)["constants"].pop()


def _nan(values: dict[str, Any]) -> None:
    _first_fit(values)["constants"][0]["value"] = float("nan")


def _doubled(values: dict[str, Any]) -> None:
    constants = _first_fit(values)["constants"]
    constants.append(constants[0])


def _negative(values: dict[str, Any]) -> None:
    _first_fit(values)["constants"][0]["value"] *= -1


@pytest.mark.parametrize("spoil", [_missing, _nan, _doubled, _negative])
def test_load_refuses_a_spoilt_calibration(
    stepgauge: Stepgauge, exported_calibration: Path, tmp_path: Path, spoil: Callable[[dict[str, Any]], None]
) -> None:
    values = json.loads(exported_calibration.read_text(encoding="utf-8"))
    spoil(values)
    (tmp_path / "bad.json").write_text(json.dumps(values))
    assert_refused(stepgauge("load", tmp_path / "bad.json", "--db", tmp_path / "store.sqlite"))


@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 1000, b"[" * 100_000, b"{}", b'{"format": "other"}'])
def test_load_refuses_what_is_no_calibration(stepgauge: Stepgauge, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    assert_refused(stepgauge("load", tmp_path / "bad.json", "--db", tmp_path / "store.sqlite"))


def test_a_taken_name_is_refused_before_anything_is_measured(
    stepgauge: Stepgauge, store: Path, exported_calibration: Path
) -> None:
    assert_refused(stepgauge("calibrate", "--name", "sim", "--device", "simulated", "--db", store), "'sim'")
    assert_refused(stepgauge("load", exported_calibration, "--db", store), "'sim'")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("calibrate", "--device", "gpu"), "unknown device 'gpu'"),
        (("calibrate", "--device", "cuda"), "CUDA"),
        (("calibrate", "--budget", "0s"), "budget"),
        (("calibrate", "--budget", "fast"), "'fast' is not a duration"),
        (("calibrate", "--name", " "), "name"),
        (("show", "nobody"), "unknown calibration 'nobody'"),
        (("export", "nobody"), "unknown calibration 'nobody'"),
        (("export", "sim", "-o", "/no/such/folder/sim.json"), "cannot write /no/such/folder/sim.json"),
        (("compare", "sim", "nobody"), "unknown calibration 'nobody'"),
        (("compare", "sim", "sim", "--model", "resnet50"), "resnet50:8"),
        (("validate", "resnet50:zero"), "resnet50:8"),
        (("validate", "resnet50:0"), "at least 1"),
        (("load", "/no/such.json"), "cannot read /no/such.json"),
    ],
)
def test_other_commands_refuse(stepgauge: Stepgauge, store: Path, arguments: tuple[object, ...], text: str) -> None:
    assert_refused(stepgauge(*arguments, "--db", store), text)


@contextmanager
def _small_disk(folder: Path, size: str) -> Iterator[None]:
    """A tmpfs of a few hundred kilobytes; the test skips where it may not be mounted."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk needs the right to mount: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_ends_a_calibration_in_one_line_and_leaves_none(stepgauge: Stepgauge, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with _small_disk(disk, "600k"):
        db = disk / "store.sqlite"
        ran = stepgauge("calibrate", "--device", "simulated", "--quick", "--name", "full", "--db", db)
        assert_refused(ran, "full")
        listed = stepgauge("list", "--json", "--db", db)
        assert listed.code == 2 or json.loads(listed.out)["calibrations"] == []
