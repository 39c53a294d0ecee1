"""A calibration of the simulated device that several tests look at."""

from __future__ import annotations

import pytest

from benchmarks.recovery import measure, small_residual_network
from calibration.calibrate import Report, fit
from calibration.design import default_cases
from oracle.constants import Calibration
from oracle.execution import Execution
from profiler.backends.simulated import SimulatedDevice


@pytest.fixture(scope="session")
def fitted() -> tuple[Calibration, Report]:
    cases = default_cases([(small_residual_network(), 8)], Execution(), quick=True)
    device = SimulatedDevice(1)
    measurements = [measure(case, device, visit) for visit in range(2) for case in cases]
    return fit(measurements, "simulated", created_at="2026-01-01T00:00:00Z")


@pytest.fixture(scope="session")
def calibration(fitted: tuple[Calibration, Report]) -> Calibration:
    return fitted[0]
