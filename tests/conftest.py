"""Fixtures that every test may use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from oracle.constants import Calibration, Constant, KernelFit, MeasuredShape
from oracle.estimate import DRAWS
from oracle.layer import Phase
from oracle.layers import Elementwise, Linear
from oracle.windows import Conv
from profiler.measurement import Environment, Measurement

# No test is held to a time: machines that share their cores pause.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real measurements beside the checkout; tests that need it skip where it is absent."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("STEPGAUGE_SHARED", beside))
    if not (folder / "data").is_dir():
        pytest.skip(f"real measurements are not at hand: no folder {folder}")
    return folder


def _fit(family: str, phase: Phase, execution: str, values: dict[str, float]) -> KernelFit:
    spread = np.linspace(0.9, 1.1, DRAWS)
    units = {"launch_s": "s", "flop_per_s": "FLOP/s", "bytes_per_s": "B/s"}
    constants = tuple(
        Constant(
            family=family,
            phase=phase,
            execution=execution,
            quantity=quantity,
            value=value,
            unit=units[quantity],
            lo=0.92 * value,
            hi=1.08 * value,
            draws=tuple(float(draw) for draw in value * spread),
        )
        for quantity, value in values.items()
    )
    return KernelFit(family, phase, execution, constants, 12, 240, 0.07, 0.05, 1e6, 3e9, 1e4, 5e7)


@pytest.fixture(scope="session")
def make_calibration() -> Callable[..., Calibration]:
    """Build a small calibration; keyword arguments replace its fields."""

    def make(name: str = "small", **fields: object) -> Calibration:
        fp32, update = "fp32/channels_first", "fp32/sgd_momentum"
        layer = Conv.of((3, 32, 32), 8, 3, padding=1)
        values: dict[str, object] = {
            "name": name,
            "device": "Simulated 1",
            "created_at": "2026-01-02T03:04:05+00:00",
            "environment": {"device": "Simulated 1", "python": "3.11.7"},
            "validity_key": "0123456789abcdef",
            "fits": (
                _fit("conv2d", Phase.FORWARD, fp32, {"launch_s": 8.1e-6, "flop_per_s": 1.7e12, "bytes_per_s": 2e11}),
                _fit("elementwise", Phase.FORWARD, fp32, {"launch_s": 4.9e-6, "bytes_per_s": 1.1e11}),
                _fit("linear", Phase.UPDATE, update, {"bytes_per_s": 9.7e10}),
            ),
            "shapes": (
                MeasuredShape(layer, Phase.FORWARD, 16, fp32, 1.3e-4, 0.04, 30),
                MeasuredShape(layer, Phase.BACKWARD_WEIGHT, 16, fp32, 2.9e-4, 0.05, 30),
                MeasuredShape(Linear(64, 10), Phase.UPDATE, 1, update, 6.1e-6, 0.1, 50),
                MeasuredShape(Elementwise("relu", (8, 32, 32)), Phase.FORWARD, 16, fp32, 2.2e-5, 0.02, 40),
            ),
            "common_sd": 0.021,
            "notes": ("the machine was not idle",),
        }
        return Calibration(**{**values, **fields})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def make_measurement() -> Callable[..., Measurement]:
    """Build a measurement of a run; keyword arguments replace its fields."""

    def make(run_id: str = "nowhere", **fields: object) -> Measurement:
        environment = Environment({"device": "Simulated 1", "python": "3.11.7"}, {"load": "0.1"}, ("no clocks",))
        values: dict[str, object] = {
            "micro": "linear",
            "case": {"layer": Linear(64, 10).to_dict(), "samples": 16},
            "phase": "forward",
            "execution": "fp32/channels_first",
            "device_s": (3.1e-5, 2.9e-5, 1 / 3e4),
            "host_s": (3.0e-5, 0.0, 3.2e-5),
            "inner": 4,
            "device": "Simulated 1",
            "environment": environment,
            "run_id": run_id,
            "taken_at": "2026-01-02T03:04:05+00:00",
            "stopped": "precise enough",
            "flags": ("noisy",),
        }
        return Measurement(**{**values, **fields})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def simulated_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the calibration `sim` of the simulated device; copy it before you write to it."""
    from db.store import Store
    from service.calibrating import calibrate
    from service.measuring_requests import CalibrateRequest

    path = tmp_path_factory.mktemp("simulated") / "store.sqlite"
    with Store.open(str(path)) as store:
        calibrate(store, CalibrateRequest(device="simulated", name="sim", quick=True, budget_s=60.0))
    return path


@pytest.fixture(scope="session")
def exported_calibration(simulated_store: Path) -> Path:
    """The calibration `sim` as the JSON file that `stepgauge export` writes."""
    from db.store import Store
    from oracle.interchange import calibration_to_json

    path = simulated_store.with_name("sim.json")
    with Store.open(str(simulated_store)) as store:
        path.write_text(calibration_to_json(store.calibration("sim")), encoding="utf-8")
    return path
