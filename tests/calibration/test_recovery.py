"""The acceptance test of all fits: known constants come back, and their intervals cover them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.recovery import Recovery, recover, small_residual_network
from calibration.design import default_cases
from oracle.execution import Execution


@pytest.fixture(scope="module")
def rows() -> list[Recovery]:
    # benchmarks/recovery.py does this in 200 runs.
    cases = default_cases([(small_residual_network(), 8)], Execution(), quick=True)
    return list(recover(cases, range(16), noise_sd=0.05))


def test_the_median_of_every_constant_is_near_the_truth(rows: list[Recovery]) -> None:
    assert len(rows) == 47
    assert {row.name: row.error for row in rows if abs(row.error) > 0.05} == {}


def test_every_constant_is_identified(rows: list[Recovery]) -> None:
    assert {row.name for row in rows if row.identified < 1} == set()


def test_intervals_cover_the_truth(rows: list[Recovery]) -> None:
    # 47 constants in 16 runs at 80 %: a standard error of 1.5 points, more where constants of a family go together.
    assert np.mean([row.coverage for row in rows]) == pytest.approx(0.825, abs=0.075)
