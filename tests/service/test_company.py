"""What was measured beside a collective, from the store to the price of a plan."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db.store import Store
from oracle.errors import BadInput
from profiler.collectives.sides import COLLECTIVE_ALONE, COLLECTIVE_BESIDE, KERNEL_ALONE, KERNEL_BESIDE
from profiler.measurement import Measurement
from service.collecting import CollectivesRequest

Stepgauge = Callable[..., Any]
MakeMeasurement = Callable[..., Measurement]
SIZES = tuple(2**doubling for doubling in range(8, 27, 2))


@pytest.fixture(autouse=True)
def _own_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def run_of(make: MakeMeasurement, db: Path, overlap: bool) -> str:
    """Store all_reduces of two ranks at 1 GB/s, with or without both sides of an overlap; the run's id."""
    with Store.open(str(db)) as store:
        run = store.begin_run("measure --collectives", "Simulated 1", make().environment)
        case = {"collective": "all_reduce", "ranks": 2, "nodes": 1, "dtype": "fp32", "in_place": True}
        plain = {"micro": "collective", "phase": "all_reduce", "host_s": ()}
        rows = [make(run, case={**case, "bytes": size}, device_s=(1e-5 + 1e-9 * size,) * 3, **plain) for size in SIZES]
        sides = {COLLECTIVE_ALONE: 2.0, KERNEL_ALONE: 1.0, COLLECTIVE_BESIDE: 3.0, KERNEL_BESIDE: 1.2}
        beside = [
            make(
                run,
                case={**case, "bytes": 2**20, "beside": "matmul 256", "timed": side},
                device_s=(seconds * 1e-3,) * 3,
                **{**plain, "micro": "overlap"},
            )
            for side, seconds in sides.items()
        ]
        store.add_measurements([*rows, *(beside if overlap else [])])
        store.finish_run(run, "finished")
    return run


def test_measured_overlap_is_stored_shown_and_slows_a_plan_that_overlaps(
    stepgauge: Stepgauge, store: Path, make_measurement: MakeMeasurement
) -> None:
    for name, overlap in (("apart", False), ("together", True)):
        run = run_of(make_measurement, store, overlap)
        ran = stepgauge("fit", "--from", run, "--name", name, "--db", store)
        assert ran.code == 0, ran.err
    shown = stepgauge("show", "together", "--db", store).out
    assert "all_reduce of 2 ranks beside matmul 256: it takes 1.50 (1.50 - 1.50) times as long" in shown
    assert "the kernel 1.20 (1.20 - 1.20) times" in shown
    connection = sqlite3.connect(store)
    rows = dict(connection.execute("SELECT name, value FROM network_constant WHERE name LIKE 'overlap.%'").fetchall())
    connection.close()
    where = "overlap.all_reduce.2ranks.1nodes.matmul_256"
    assert rows == {f"{where}.of_kernels": pytest.approx(1.2), f"{where}.of_collective": pytest.approx(1.5)}
    steps = {}
    for strategy in ("data", "data,buckets=1MiB"):
        for name in ("apart", "together"):
            arguments = ("resnet50", "--batch-per-device", 8, "--devices", 2, "--network", name, "--strategy", strategy)
            (found,) = json.loads(stepgauge("predict", *arguments, "--json", "--db", store).out)["projections"]
            steps[strategy, name] = found["step_s"]["middle"]
    assert steps["data", "apart"] == steps["data", "together"]
    assert steps["data,buckets=1MiB", "apart"] < steps["data,buckets=1MiB", "together"]


def test_overlap_alone_is_no_network(stepgauge: Stepgauge, store: Path, make_measurement: MakeMeasurement) -> None:
    run = run_of(make_measurement, store, True)
    ran = stepgauge("fit", "--from", run, "--where", "micro=overlap", "--name", "x", "--db", store)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "no collective was measured at two sizes" in ran.err


def test_what_is_asked_reaches_the_ranks() -> None:
    request = CollectivesRequest(spacing=("pause",), beside=("copy",))
    settings = request.settings(Path(), b"", ("all",))
    assert (settings.spacings, settings.beside) == (("pause",), ("copy",))
    assert replace(request, spacing=()).settings(Path(), b"", ("all",)).spacings == ("back_to_back",)
    with pytest.raises(BadInput, match="--cupy measures NCCL on GPUs"):
        CollectivesRequest(cupy=True)
