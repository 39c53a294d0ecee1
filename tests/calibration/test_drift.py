"""The machine's speed from its anchors, on made-up runs of which the truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from benchmarks.recovery import measure
from calibration.calibrate import fit
from calibration.drift import LEAST_MOMENTS, machine_speed, steadied, tie
from oracle.errors import BadInput
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import Linear
from oracle.pricing import LayerCall
from profiler.anchors import ANCHOR, anchor_cases, choose_anchors, visit_anchors
from profiler.backends.simulated import Disturbance, SimulatedDevice
from profiler.case import Case
from profiler.measurement import Measurement

START = datetime(2026, 1, 1, tzinfo=UTC)
EVERY_S = 10.0
ANCHORS = choose_anchors(SimulatedDevice(), Execution())
Law = Callable[[float], float]


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def visit(case: Case, device: SimulatedDevice, law: Law, seconds: float, anchor: bool = False) -> Measurement:
    """A visit at a moment when everything takes `law` times as long."""
    taken = measure(case, device)
    device_s = tuple(law(seconds) * sample for sample in taken.device_s)
    return replace(taken, device_s=device_s, taken_at=at(seconds), flags=(ANCHOR,) if anchor else ())


def anchored(law: Law, moments: int = 30, noise_sd: float = 0.01, every_s: float = EVERY_S) -> list[Measurement]:
    device = SimulatedDevice(4, Disturbance(noise_sd))
    return [
        visit(case, device, law, every_s * moment + 0.1 * index, anchor=True)
        for moment in range(moments)
        for index, case in enumerate(ANCHORS)
    ]


def ramp(seconds: float) -> float:
    """20 % slower at the end of 300 s."""
    return math.exp(0.2 * seconds / 300)


def step(seconds: float) -> float:
    """A quarter slower from 120 s on."""
    return 1.25 if seconds > 120 else 1.0


def sine(seconds: float) -> float:
    """10 % up and down in 150 s."""
    return math.exp(0.1 * math.sin(2 * math.pi * seconds / 150))


def test_anchors_take_some_milliseconds() -> None:
    assert len(ANCHORS) == 3
    taken = visit_anchors(ANCHORS, SimulatedDevice(), "run")
    assert all(1e-3 < measurement.median_s < 1e-2 for measurement in taken)
    assert all(ANCHOR in measurement.flags for measurement in taken)


def test_anchors_are_found_again_among_measurements() -> None:
    assert anchor_cases(anchored(ramp, 3), Execution()) == ANCHORS


def test_an_anchor_that_does_not_fit_takes_fewer_samples() -> None:
    small = SimulatedDevice(memory_bytes=2e6)
    assert all(case.call.samples == 1 for case in choose_anchors(small, Execution()))
    assert choose_anchors(SimulatedDevice(memory_bytes=10), Execution()) == ()


@pytest.mark.parametrize("law", [ramp, step, sine])
def test_the_machines_moves_are_found_between_the_anchors(law: Law) -> None:
    speed = machine_speed(anchored(law))
    asked = np.linspace(0, 290, 59)
    truth = np.log([law(seconds) for seconds in asked])
    error = speed.log_slowness([at(seconds) for seconds in asked]) - (truth - np.median(truth))
    # A step is smeared over one interval between two visits; the rest is the anchors' own noise.
    assert np.median(np.abs(error)) < 0.02
    assert np.std(error) < 0.35 * np.std(truth)
    assert speed.moved == pytest.approx(np.expm1(np.ptp(truth)), rel=0.3)


@pytest.mark.parametrize("noise_sd", [0.002, 0.02, 0.2])
def test_a_steady_machine_is_left_alone(noise_sd: float) -> None:
    assert steadied(anchored(lambda seconds: 1.0, noise_sd=noise_sd))[1] == ()
    assert machine_speed(anchored(lambda seconds: 1.0, noise_sd=noise_sd)).moved < 0.02


def test_what_changes_faster_than_the_anchors_come_is_left_alone() -> None:
    # A neighbour that works every other second says nothing of the visits ten seconds later.
    draw = np.random.default_rng(1)
    states = dict.fromkeys(range(30), 1.0) | {int(k): 1.3 for k in draw.choice(30, 12, replace=False)}
    # 30 % up and down by chance: a trend of a few percent is in it, and no more may be taken for one.
    assert machine_speed(anchored(lambda seconds: states[int(seconds // EVERY_S)])).moved < 0.1


def test_few_moments_say_nothing_of_the_time_between_them() -> None:
    assert machine_speed(anchored(ramp, LEAST_MOMENTS - 1)).moved == 0.0


def test_one_wild_anchor_is_no_move_of_the_machine() -> None:
    wild = ANCHORS[0].key
    taken = anchored(lambda seconds: 1.0)
    moved = [
        replace(m, device_s=tuple(ramp(3 * (index // 3) * EVERY_S) * s for s in m.device_s))
        if m.case_key == wild
        else m
        for index, m in enumerate(taken)
    ]
    assert machine_speed(moved).moved < 0.02


def case(samples: int) -> Case:
    return Case(LayerCall(Linear(256, 128), Phase.FORWARD, samples), Execution())


def visited(law: Law) -> list[Measurement]:
    """Anchors, and 40 cases that are visited twice, the second time 150 s later."""
    device = SimulatedDevice(7, Disturbance(0.01))
    visits = [
        visit(case(8 * number), device, law, 3.5 * number + 150 * again) for again in (0, 1) for number in range(1, 41)
    ]
    return [*anchored(law), *visits]


@pytest.mark.parametrize("law", [ramp, step])
def test_visits_agree_once_the_machines_moves_are_divided_out(law: Law) -> None:
    taken = visited(law)
    steady, said = steadied(taken)
    assert said[0].startswith("the machine's speed moved by 2")
    assert said[0].endswith("% during the run, by 30 visits of its anchors; divided out")

    def apart(measurements: Sequence[Measurement]) -> float:
        firsts, seconds = measurements[-80:-40], measurements[-40:]
        return float(np.mean([abs(math.log(b.median_s / a.median_s)) for a, b in zip(firsts, seconds, strict=True)]))

    assert apart(taken) > 0.09
    assert apart(steady) < 0.03
    # Only the device's samples are scaled.
    assert [replace(m, device_s=()) for m in steady] == [replace(m, device_s=()) for m in taken]


def test_a_calibration_says_that_the_machine_moved() -> None:
    calibration, _ = fit(visited(ramp), "moved", created_at=at(0))
    assert any("divided out" in note for note in calibration.notes)
    assert not any("divided out" in note for note in fit(visited(lambda s: 1.0), "steady", created_at=at(0))[0].notes)


def test_two_runs_are_tied_by_their_anchors() -> None:
    first, second = anchored(lambda seconds: 1.0, 10), anchored(lambda seconds: 1.15, 10)
    found = tie(first, second)
    assert found.factor == pytest.approx(1.15, rel=0.02)
    assert found.anchors == 3
    assert found.log_sd < 0.02
    assert tie(second, first).factor == pytest.approx(1 / found.factor)


def test_runs_without_a_common_anchor_cannot_be_tied() -> None:
    with pytest.raises(BadInput, match="no anchor in common"):
        tie(anchored(ramp, 2), [visit(case(8), SimulatedDevice(), ramp, 0)])
