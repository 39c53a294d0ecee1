"""Trace and profile from the command line, on this CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from db.store import Store
from oracle.constants import Calibration
from profiler.backends.base import open_backend

Stepgauge = Callable[..., Any]

NET = """
import torch
from torch import nn

def net():
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 5)]
    return nn.Sequential(*layers), torch.randn(2, 3, 8, 8)

def waits():
    class Waits(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x
    return Waits(), torch.randn(2, 3)

def norm():
    return nn.BatchNorm1d(3), torch.randn(2, 3)
"""


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(NET, encoding="utf-8")
    return path


@pytest.fixture
def own_store(tmp_path: Path, make_calibration: Callable[..., Calibration]) -> Path:
    """A store with a calibration of this very CPU."""
    backend, path = open_backend("cpu"), tmp_path / "own.sqlite"
    environment = backend.environment()
    calibration = make_calibration(
        "base", device=backend.device, environment=dict(environment.identity), validity_key=environment.validity_key
    )
    with Store.open(str(path)) as store:
        store.add_calibration(calibration, [])
    return path


def test_a_traced_module_is_predicted_from_its_file_and_by_its_name(
    stepgauge: Stepgauge, store: Path, nets: Path, tmp_path: Path
) -> None:
    ran = stepgauge("trace", f"{nets}:net", "--out", tmp_path / "net.json", "--json")
    found = json.loads(ran.out)
    assert (found["model"], found["sample_shape"], found["parameters"]) == ("net", [3, 8, 8], 112 + 256 * 5 + 5)
    assert found["kinds"] == {"conv": 1, "elementwise": 1, "linear": 1}
    steps = [
        json.loads(stepgauge("predict", model, "--batch", 8, "--db", store, "--json").out)["projections"][0]["step_s"]
        for model in (tmp_path / "net.json", f"{nets}:net")
    ]
    assert steps[0] == steps[1]


def test_what_cannot_be_traced_is_one_line_and_exit_code_two(stepgauge: Stepgauge, nets: Path) -> None:
    ran = stepgauge("trace", f"{nets}:waits")
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert "cannot be traced: at nets.py:12" in ran.err
    assert ran.err.count("\n") == 1


def test_trace_prints_kinds_and_where_to_go_on(stepgauge: Stepgauge, nets: Path) -> None:
    ran = stepgauge("trace", f"{nets}:net")
    assert "3 layers on samples of 3 x 8 x 8" in ran.out
    assert "note: it computes no loss" in ran.out
    assert "--out FILE.json" in ran.out


def test_profile_stores_its_layers_and_names_the_rest(stepgauge: Stepgauge, own_store: Path, nets: Path) -> None:
    ran = stepgauge("profile", f"{nets}:net:4", "--budget", "1s", "--json", "--db", own_store)
    (found,) = json.loads(ran.out)["profiles"]
    assert (found["model"], found["batch"]) == ("net", 4)
    assert {row["layer"] for row in found["layers"]} == {"0", "1", "3"}
    assert "framework" in found["rest_s"]
    assert found["step_s"] == pytest.approx(found["layers_s"] + sum(found["rest_s"].values()))
    with Store.open(str(own_store)) as store:
        stored = store.measurements(json.loads(ran.out)["run"])
    # forward and backward-weight of both layers with weights, backward-data of the second, relu twice, one update
    assert len(stored) == 4 + 1 + 2 + 1


def test_a_batch_that_a_module_cannot_run_is_refused(stepgauge: Stepgauge, own_store: Path, nets: Path) -> None:
    # Statistics of one value: torch refuses it in the real step only, which has other samples than the traced one.
    ran = stepgauge("profile", f"{nets}:norm:1", "--budget", "1s", "--db", own_store)
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
    assert "norm fails on 1 samples: ValueError" in ran.err


def test_a_named_profile_is_a_calibration_that_predicts_its_step(
    stepgauge: Stepgauge, own_store: Path, nets: Path
) -> None:
    profiled = stepgauge(
        *("profile", f"{nets}:net", "--budget", "1s", "--calibration", "base", "--name", "mine"),
        *("--json", "--db", own_store),
    )
    assert json.loads(profiled.out)["calibration"] == "mine"
    measured = json.loads(profiled.out)["profiles"][0]
    ran = stepgauge(
        "predict", f"{nets}:net", "--batch", 2, "--calibration", "mine", "--memory", "1GB", "--json", "--db", own_store
    )
    (predicted,) = json.loads(ran.out)["projections"]
    assert predicted["step_s"]["middle"] == pytest.approx(measured["step_s"], rel=1e-6)
    assert predicted["methods"] == {"measured": pytest.approx(1.0)}
    again = stepgauge("profile", f"{nets}:net:4", "--name", "mine", "--db", own_store)
    assert (again.code, again.err.startswith("error: there is a calibration 'mine' already")) == (2, True)


def test_profile_prints_layers_beside_the_step(stepgauge: Stepgauge, own_store: Path, nets: Path) -> None:
    ran = stepgauge("profile", f"{nets}:net:4", "--budget", "1s", "--db", own_store)
    for text in ("backward-weight", "all layers", "framework", "whole step", "peak memory"):
        assert text in ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("resnet50",), "say how many samples a step of resnet50 has, such as resnet50:8"),
        (("resnet50:8", "--calibration", "base"), "give it a --name"),
        (("resnet50:8", "--device", "simulated"), "runs no training steps"),
        (("nothing.py:net:4",), "there is no file nothing.py"),
    ],
)
def test_what_cannot_be_profiled_is_refused(
    stepgauge: Stepgauge, own_store: Path, arguments: tuple[str, ...], said: str
) -> None:
    ran = stepgauge("profile", *arguments, "--db", own_store)
    assert ran.code == 2
    assert said in ran.err
