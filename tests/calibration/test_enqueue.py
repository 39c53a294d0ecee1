"""The host of an accelerator, from its samples to a step that waits for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.recovery import measure, small_residual_network
from calibration.calibrate import fit
from calibration.design import default_cases
from calibration.timers import CalibratedTimer
from oracle.constants import Calibration, Constant
from oracle.execution import Execution
from oracle.interchange import calibration_from_json, calibration_to_json
from oracle.layer import Phase
from oracle.layers import Linear
from oracle.links import LinkTimer
from oracle.machine import Cluster
from oracle.plan import Job, tasks_of
from oracle.predictor import Predictor
from oracle.pricing import LayerCall
from oracle.projection import Projection, total_of
from oracle.strategies.serial import Serial
from profiler.backends.simulated import SimulatedDevice, TrueHost
from profiler.measurement import Measurement

HOST = TrueHost(call_s=3e-3, tensor_s=1e-3, step_s=8e-3)
"""So slow that a small network waits for it."""


def measured(host: TrueHost | None) -> list[Measurement]:
    cases = default_cases([(small_residual_network(), 8)], Execution(), quick=True)
    device = SimulatedDevice(1, host=host)
    return [measure(case, device, visit) for visit in range(2) for case in cases]


def fitted(measurements: list[Measurement]) -> Calibration:
    return fit(measurements, "simulated", created_at="2026-01-01T00:00:00Z")[0]


@pytest.fixture(scope="module")
def slow() -> Calibration:
    return fitted(measured(HOST))


def of_the_host(calibration: Calibration) -> list[Constant]:
    return [constant for constant in calibration.constants if constant.quantity.startswith("enqueue")]


def predicted(calibration: Calibration) -> Projection:
    job = Job(small_residual_network(), 8, 1, Cluster("one", calibration.device))
    return Predictor(CalibratedTimer(calibration, Execution()), LinkTimer).project(job, Serial())


def test_the_host_constants_of_an_accelerator_are_recovered(slow: Calibration) -> None:
    true = {
        Phase.FORWARD: HOST.call_s,
        Phase.BACKWARD_DATA: 0.8 * HOST.call_s,
        Phase.BACKWARD_WEIGHT: 0.9 * HOST.call_s,
    }
    calls = [constant for constant in of_the_host(slow) if constant.phase is not Phase.UPDATE]
    assert {constant.phase for constant in calls} == set(true)
    for constant in calls:
        assert constant.value == pytest.approx(true[constant.phase], rel=0.05)
        assert constant.lo <= constant.value <= constant.hi


def test_an_update_costs_a_step_once_and_each_tensor(slow: Calibration) -> None:
    known = {constant.quantity: constant.value for constant in of_the_host(slow) if constant.phase is Phase.UPDATE}
    assert known["enqueue_step_s"] == pytest.approx(HOST.step_s, rel=0.2)
    assert known["enqueue_s"] == pytest.approx(HOST.tensor_s, rel=0.4)


def test_a_step_that_the_host_binds_is_predicted(slow: Calibration) -> None:
    graph = small_residual_network()
    tasks = tasks_of(graph, graph.nodes, 8)
    true_s = sum(t.count * HOST.host_seconds(t.call.layer, t.call.phase) for t in tasks)
    answer = predicted(slow)
    assert answer.step is not None
    assert total_of(answer.host_wait).middle > 0.5 * answer.step.middle
    assert answer.step.middle == pytest.approx(true_s, rel=0.08)
    lo, hi = answer.step.interval()
    assert lo < true_s < hi


def test_a_fast_host_changes_nothing_of_a_step() -> None:
    fast, none = (predicted(fitted(measured(host))) for host in (TrueHost(1e-9, 1e-9, 1e-9), None))
    assert fast.step is not None
    assert none.step is not None
    assert total_of(fast.host).middle > 0
    assert fast.step.middle == none.step.middle


def test_a_cpu_never_gets_host_constants() -> None:
    calibration = fitted(measured(None))
    assert not of_the_host(calibration)
    assert not predicted(calibration).host


def test_what_was_timed_inside_a_step_says_nothing_of_the_host() -> None:
    inside = [replace(item, flags=(*item.flags, "in-situ")) for item in measured(HOST)]
    assert not of_the_host(fitted(inside))


def test_imported_times_without_a_host_give_none() -> None:
    assert not of_the_host(fitted([replace(item, host_s=()) for item in measured(HOST)]))


def test_a_calibration_without_host_constants_predicts_as_before(slow: Calibration) -> None:
    fits = tuple(
        replace(one, constants=tuple(c for c in one.constants if not c.quantity.startswith("enqueue")))
        for one in slow.fits
    )
    answer, old = predicted(slow), predicted(replace(slow, fits=fits))
    assert old.step is not None
    assert not old.host
    assert old.step.middle == answer.compute_total.middle


def test_host_constants_travel(slow: Calibration) -> None:
    assert calibration_from_json(calibration_to_json(slow)) == slow


def test_the_host_costs_the_same_however_many_samples(slow: Calibration) -> None:
    timer = CalibratedTimer(slow, Execution())
    calls = [LayerCall(Linear(64, 10), Phase.FORWARD, samples) for samples in (1, 1000)]
    prices = timer.enqueue(calls, Execution())
    assert prices is not None
    assert np.array_equal(*prices)


def test_a_fused_optimizer_that_was_not_measured_costs_what_one_tensor_does(slow: Calibration) -> None:
    timer = CalibratedTimer(slow, Execution())
    update = [LayerCall(Linear(64, 10, bias=bias), Phase.UPDATE, 1) for bias in (True, False)]
    known, fused = (timer.enqueue(update, Execution(update=how)) for how in ("any", "fused"))
    assert known is not None
    assert fused is not None
    assert fused[0] == pytest.approx(known[1])
    assert timer.enqueue(update, Execution(graph=True)) is None
