from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.recovery import measure, small_residual_network
from calibration.calibrate import Report, fit
from calibration.design import default_cases
from oracle.constants import Calibration
from oracle.errors import BadInput
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import Linear
from oracle.pricing import LayerCall
from profiler.backends.simulated import SimulatedDevice
from profiler.case import Case
from profiler.measurement import Environment, Measurement
from profiler.run import Planned, RunSettings
from profiler.run import measure as run_measurements

NOW = "2026-01-01T00:00:00Z"


def one(samples: int = 8) -> Measurement:
    return measure(Case(LayerCall(Linear(64, 32), Phase.FORWARD, samples), Execution()), SimulatedDevice())


def test_every_family_and_phase_of_the_cases_is_fitted(fitted: tuple[Calibration, Report]) -> None:
    calibration, report = fitted
    assert {(row.family, row.phase) for row in report.families} == {(f.family, f.phase) for f in calibration.fits}
    assert {row.phase for row in report.families} == set(Phase)
    assert all(row.held_out_error is not None and row.held_out_error < 0.1 for row in report.families)


def test_every_measured_shape_is_kept_with_its_samples(fitted: tuple[Calibration, Report]) -> None:
    calibration, report = fitted
    assert len(calibration.shapes) == len(default_cases([(small_residual_network(), 8)], Execution(), quick=True))
    assert sum(shape.count for shape in calibration.shapes) == 5 * report.measurements


def test_a_calibration_says_where_it_was_taken(calibration: Calibration) -> None:
    environment = SimulatedDevice(1).environment()
    assert calibration.device == "simulated device"
    assert calibration.environment == environment.identity
    assert calibration.validity_key == environment.validity_key


def test_a_fit_does_not_depend_on_the_order_of_measurements() -> None:
    measurements = [one(samples) for samples in (1, 8, 64, 512)]
    there, _ = fit(measurements, "a", created_at=NOW)
    back, _ = fit(measurements[::-1], "a", created_at=NOW)
    assert {(c.name, round(c.value / 1e9, 6)) for c in there.constants} == {
        (c.name, round(c.value / 1e9, 6)) for c in back.constants
    }


def test_nothing_to_fit_is_refused() -> None:
    with pytest.raises(BadInput, match="there are no measurements to fit"):
        fit([], "empty", created_at=NOW)


def test_two_devices_are_refused() -> None:
    with pytest.raises(BadInput, match="of one device, not of another, simulated device"):
        fit([one(), replace(one(), device="another")], "mixed", created_at=NOW)


def test_two_environments_are_refused_with_their_difference() -> None:
    other = Environment({"device": "simulated device", "law": "roofline"}, {})
    with pytest.raises(BadInput, match="two environments cannot be fitted together: law is additive and roofline"):
        fit([one(), replace(one(), environment=other)], "mixed", created_at=NOW)


def test_flags_and_unseen_drift_become_notes() -> None:
    calibration, report = fit([one(), replace(one(16), flags=("noisy",))], "noted", created_at=NOW)
    assert calibration.notes == report.notes
    noisy = "1 of 2 measurements are flagged noisy: their median is known less well than was asked"
    assert noisy in calibration.notes
    assert any("0 of 2 cases were visited twice" in note for note in calibration.notes)


def test_a_measuring_run_can_be_fitted() -> None:
    recorded: list[Measurement] = []
    cases = [Case(LayerCall(Linear(64 * k, 32 * k), Phase.FORWARD, k * k), Execution()) for k in (1, 2, 4, 8, 16, 32)]
    run_measurements(
        [Planned(case) for case in cases], SimulatedDevice(), recorded.append, RunSettings("run", budget_s=20.0)
    )
    calibration, report = fit(recorded, "run", created_at=NOW)
    assert len(calibration.shapes) == 6
    assert report.measurements == len(recorded) >= 12
