from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.recovery import measure
from calibration.repeats import (
    LEAST_CASES,
    LEAST_DRIFT_SD,
    LEAST_LOG_SD,
    UNSEEN_DRIFT_SD,
    disturbed_notes,
    drift_sd,
    measured_shape,
    visits,
)
from oracle.errors import BadInput
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import Linear
from oracle.pricing import LayerCall
from profiler.backends.simulated import Disturbance, SimulatedDevice
from profiler.case import Case
from profiler.measurement import Measurement

CALL = LayerCall(Linear(64, 32), Phase.FORWARD, 8)


def measurement(*device_s: float, samples: int = 8, visit: int = 0) -> Measurement:
    case = Case(LayerCall(CALL.layer, CALL.phase, samples), Execution())
    taken = measure(case, SimulatedDevice(), visit)
    return replace(taken, device_s=device_s, host_s=device_s)


def shape_of(*measurements: Measurement) -> tuple[float, float, int]:
    shape = measured_shape(CALL, "fp32/channels_first", measurements)
    return shape.seconds, shape.log_sd, shape.count


@pytest.mark.parametrize("wrong", [0.0, -1e-3, math.nan, math.inf])
def test_samples_that_are_no_times_are_refused(wrong: float) -> None:
    with pytest.raises(BadInput, match=f"has a sample of {wrong:g} s; samples are positive numbers of seconds"):
        visits([measurement(1e-3, wrong)])


def test_a_measurement_without_samples_is_refused() -> None:
    with pytest.raises(BadInput, match="has no samples"):
        visits([measurement()])


def test_visits_of_a_case_come_in_the_order_of_time() -> None:
    found = visits([measurement(2.0, visit=2), measurement(1.0, visit=1), measurement(3.0, samples=4)])
    assert [[taken.median_s for taken in group] for group in found.values()] == [[3.0], [1.0, 2.0]]


def flagged(measurement: Measurement, *flags: str) -> Measurement:
    return replace(measurement, flags=flags)


@pytest.mark.parametrize("flag", ["preempted", "stolen", "throttled"])
def test_a_case_takes_its_clean_visits_where_it_has_any(flag: str) -> None:
    clean, disturbed = measurement(1.0), flagged(measurement(9.0), "noisy", flag)
    assert list(visits([clean, disturbed]).values()) == [[clean]]
    assert list(visits([disturbed, disturbed]).values()) == [[disturbed, disturbed]]


def test_a_noisy_visit_is_as_good_as_any() -> None:
    taken = [measurement(1.0), flagged(measurement(2.0), "noisy", "spiky", "bimodal")]
    assert list(visits(taken).values()) == [taken]


def test_cases_without_a_clean_visit_are_counted() -> None:
    found = visits([measurement(1.0), flagged(measurement(2.0, samples=4), "throttled")])
    assert list(disturbed_notes(found)) == [
        "every visit of 1 of 2 cases was preempted or throttled; their medians are of those"
    ]
    assert list(disturbed_notes(visits([measurement(1.0)]))) == []


def test_a_shape_takes_the_median_over_visits() -> None:
    # Medians of the visits: 1, 2 and 9; samples count together.
    seconds, _, count = shape_of(measurement(1.0), measurement(1.0, 2.0, 3.0), measurement(9.0))
    assert seconds == pytest.approx(2.0)
    assert count == 5


def test_spread_is_at_least_one_percent() -> None:
    assert shape_of(measurement(1.0, 1.0, 1.0))[1] == LEAST_LOG_SD


def test_spread_of_one_visit_is_that_of_its_samples() -> None:
    samples = np.exp(0.1 * np.random.default_rng(0).standard_normal(500))
    assert shape_of(measurement(*samples.tolist()))[1] == pytest.approx(0.1, rel=0.1)


def test_spread_of_several_visits_is_that_between_them() -> None:
    # Quiet visits at 1 and e^0.2: the sd of two values is their difference over sqrt 2.
    visits_of_it = (measurement(1.0, 1.0), measurement(math.exp(0.2), math.exp(0.2)))
    assert shape_of(*visits_of_it)[1] == pytest.approx(0.2 / math.sqrt(2))


def rounds(count: int, factors: list[float], noise_sd: float = 0.01) -> float:
    device = SimulatedDevice(0, Disturbance(noise_sd))
    taken = []
    for visit, factor in enumerate(factors):
        for samples in range(1, count + 1):
            raw = measure(Case(LayerCall(CALL.layer, CALL.phase, samples), Execution()), device, visit)
            taken.append(replace(raw, device_s=tuple(factor * sample for sample in raw.device_s)))
    return drift_sd(visits(taken))


def test_drift_is_what_moves_all_cases_of_a_round() -> None:
    # Two rounds that differ by 20 %: ln 1.2 / sqrt 2 = 0.129.
    assert rounds(30, [1.0, 1.2]) == pytest.approx(math.log(1.2) / math.sqrt(2), rel=0.05)


def test_noise_of_single_cases_is_no_drift() -> None:
    assert rounds(30, [1.0, 1.0, 1.0], noise_sd=0.05) == LEAST_DRIFT_SD


def test_drift_that_was_not_seen_is_assumed() -> None:
    assert rounds(30, [1.0]) == UNSEEN_DRIFT_SD
    assert rounds(LEAST_CASES - 1, [1.0, 1.0]) == UNSEEN_DRIFT_SD
