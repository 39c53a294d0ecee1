"""Fresh pages: found where large results cost more than the rate of memory, taken off fits, added to prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from calibration.calibrate import fit
from calibration.fresh_pages import FRESH_FROM_BYTES, fresh_bytes, fresh_curve
from calibration.timers import CalibratedTimer
from oracle.constants import FRESH_PAGES, Calibration
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import Concat, Elementwise, Linear
from oracle.pricing import LayerCall
from oracle.windows import Conv
from profiler.case import Case
from profiler.measurement import Environment, Measurement

NOW = "2026-02-03T04:05:06+00:00"
IMAGE = (64, 56, 56)
SAMPLE_BYTES = 4 * 64 * 56 * 56
FIRST_LARGE = -(-FRESH_FROM_BYTES // SAMPLE_BYTES)
"""The least samples of an image whose result gets fresh pages: 42."""

S_PER_BYTE, FRESH_S_PER_BYTE = 50e-12, 350e-12
RELU, ADD = Elementwise("relu", IMAGE), Elementwise("add", IMAGE)
CALLS = [
    LayerCall(layer, phase, samples)
    for layer, phase in ((RELU, Phase.FORWARD), (RELU, Phase.BACKWARD_DATA), (ADD, Phase.FORWARD))
    for samples in (1, 4, 8, 16, 32, 64, 128)
]
CPU = {"device": "some CPU", "threads": "2"}


def on_a_cpu(call: LayerCall) -> float:
    work = call.layer.work(call.phase, call.samples)
    return work.bytes * S_PER_BYTE + fresh_bytes(call, Execution()) * FRESH_S_PER_BYTE


def without_cost(call: LayerCall) -> float:
    return call.layer.work(call.phase, call.samples).bytes * S_PER_BYTE


def fitted(
    seconds: Callable[[LayerCall], float] = on_a_cpu,
    identity: Mapping[str, str] = CPU,
    calls: Sequence[LayerCall] = CALLS,
) -> Calibration:
    measurements = []
    for call in calls:
        case = Case(call, Execution())
        measurements.append(
            Measurement(
                micro=call.layer.kind,
                case=case.to_dict(),
                phase=call.phase.value,
                execution=case.execution_key,
                device_s=(seconds(call),) * 5,
                host_s=(),
                inner=1,
                device="some CPU",
                environment=Environment(dict(identity), {}),
                run_id="run",
                taken_at=NOW,
                stopped="enough",
            )
        )
    return fit(measurements, "made-up", created_at=NOW)[0]


def pages(calibration: Calibration) -> list[float]:
    return [fit.constants[0].value for fit in calibration.fits if fit.family == FRESH_PAGES]


def test_the_rate_of_fresh_pages_is_found() -> None:
    assert pages(fitted()) == pytest.approx([1 / FRESH_S_PER_BYTE])


def test_other_batches_pay_for_the_pages_that_they_need_and_no_more() -> None:
    timer = CalibratedTimer(fitted(), Execution())
    for samples in (5, FIRST_LARGE - 1, FIRST_LARGE, 100, 200):
        call = LayerCall(RELU, Phase.BACKWARD_DATA, samples)
        assert timer.price([call]).middle_s[0] == pytest.approx(on_a_cpu(call), rel=0.02)


def test_layers_of_other_families_pay_as_well() -> None:
    conv = Conv.of(IMAGE, 64, 1, bias=False)
    small = [LayerCall(conv, Phase.FORWARD, samples) for samples in (1, 2, 4, 8)]
    timer = CalibratedTimer(fitted(calls=[*CALLS, *small]), Execution())
    one, large = (timer.price([LayerCall(conv, Phase.FORWARD, n)]).middle_s[0] for n in (8, 64))
    assert large == pytest.approx(8 * one + 64 * SAMPLE_BYTES * FRESH_S_PER_BYTE, rel=0.02)


def test_a_sweep_over_samples_agrees_with_single_prices() -> None:
    timer = CalibratedTimer(fitted(), Execution())
    samples = np.array([1, 5, 32, FIRST_LARGE - 1, FIRST_LARGE, 64, 100])
    for layer, phase in ((RELU, Phase.BACKWARD_DATA), (ADD, Phase.FORWARD)):
        curve_s = timer.over_samples([LayerCall(layer, phase, 1)], samples).sums(np.ones((1, 1)), samples)[0]
        alone_s = timer.price([LayerCall(layer, phase, n) for n in samples.tolist()]).middle_s
        assert curve_s == pytest.approx(alone_s)


@pytest.mark.parametrize(
    ("seconds", "identity"),
    [(without_cost, CPU), (on_a_cpu, {"device": "some GPU", "multiprocessors": "80", "threads": "2"})],
)
def test_there_is_no_rate_where_pages_cost_nothing_or_no_cpu_runs(
    seconds: Callable[[LayerCall], float], identity: dict[str, str]
) -> None:
    assert pages(fitted(seconds, identity)) == []


def test_without_large_results_there_is_no_rate() -> None:
    assert pages(fitted(calls=[call for call in CALLS if call.samples < FIRST_LARGE])) == []


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (LayerCall(Elementwise("relu", IMAGE, inplace=True), Phase.FORWARD, 64), 0.0),
        (LayerCall(Concat((64, 64), (56, 56)), Phase.BACKWARD_DATA, 64), 0.0),
        (LayerCall(RELU, Phase.BACKWARD_DATA, FIRST_LARGE - 1), 0.0),
        (LayerCall(RELU, Phase.BACKWARD_DATA, FIRST_LARGE), FIRST_LARGE * SAMPLE_BYTES),
        (LayerCall(Linear(4096, 4096), Phase.BACKWARD_WEIGHT, 1), 4 * 4096 * 4097),
        (LayerCall(Linear(4096, 4096), Phase.UPDATE, 1), 0.0),
    ],
)
def test_fresh_bytes_are_those_of_large_new_tensors(call: LayerCall, expected: float) -> None:
    assert fresh_bytes(call, Execution()) == expected


def test_a_curve_is_the_bytes_at_each_number_of_samples() -> None:
    samples = np.array([1, FIRST_LARGE - 1, FIRST_LARGE, 3 * FIRST_LARGE])
    for layer, phase in (
        (RELU, Phase.BACKWARD_DATA),
        (ADD, Phase.FORWARD),
        (Linear(4096, 4096), Phase.BACKWARD_WEIGHT),
    ):
        alone = [fresh_bytes(LayerCall(layer, phase, n), Execution()) for n in samples.tolist()]
        assert fresh_curve(LayerCall(layer, phase, 1), Execution(), samples).tolist() == alone
