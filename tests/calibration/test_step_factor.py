"""What canary steps say: the factor by which kernels take longer inside a step, and how far it can be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from calibration.calibrate import fit
from calibration.design import model_calls
from calibration.features import canonical
from calibration.step_factor import STEP_PARTS, STEP_SD, has_step_factors, of_kernels_alone
from calibration.timers import CalibratedTimer
from oracle.constants import STEP, Calibration
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.plan import tasks_of
from oracle.pricing import LayerCall
from profiler.backends.simulated import SimulatedDevice
from profiler.case import Case
from profiler.measurement import Measurement
from profiler.steps.canaries import CANARY, Canary

NOW = "2026-02-03T04:05:06+00:00"
DEVICE = SimulatedDevice()
CANARIES = (Canary("canary-plain", 4), Canary("canary-residual", 4))


def kernel_s(call: LayerCall) -> float:
    """A made-up time that differs from call to call."""
    work = call.layer.work(call.phase, call.samples)
    return 1e-5 + work.bytes / 1e10


def measured(micro: str, case: dict[str, object], phase: str, execution: str, seconds: float) -> Measurement:
    return Measurement(
        micro=micro,
        case=case,
        phase=phase,
        execution=execution,
        device_s=(seconds,) * 5,
        host_s=(),
        inner=1,
        device=DEVICE.device,
        environment=DEVICE.environment(),
        run_id="run",
        taken_at=NOW,
        stopped="enough",
    )


def kernels(canaries: Iterable[Canary]) -> list[Measurement]:
    calls = {call for canary in canaries for call in model_calls(canary.graph, canary.samples)}
    cases = [Case(call, Execution()) for call in calls]
    return [
        measured(case.call.layer.kind, case.to_dict(), case.call.phase.value, case.execution_key, kernel_s(case.call))
        for case in cases
    ]


def kernels_s(canary: Canary, part: str) -> float:
    tasks = [
        task for task in tasks_of(canary.graph, canary.graph.nodes, canary.samples) if task.part in STEP_PARTS[part]
    ]
    return sum(task.count * kernel_s(canonical(task.call)) for task in tasks)


def steps(canary: Canary, factors: dict[str, float]) -> list[Measurement]:
    """A canary's parts, each so many times the sum of its kernels."""
    found = []
    for part in STEP_PARTS:
        seconds = factors[part] * kernels_s(canary, part)
        key = Execution().update_key if part == "update" else Execution().kernel_key
        found.append(measured(CANARY, {"model": canary.model, "samples": canary.samples}, part, key, seconds))
    return found


def fitted(*canary_steps: Sequence[Measurement]) -> Calibration:
    extra = [measurement for taken in canary_steps for measurement in taken]
    return fit([*kernels(CANARIES), *extra], "made-up", created_at=NOW)[0]


def factors(calibration: Calibration) -> dict[Phase, float]:
    return {fit.phase: fit.constants[0].value for fit in calibration.fits if fit.family == STEP}


SLOWER = {"forward": 1.1, "backward": 1.25, "update": 0.9}


def test_each_part_of_a_step_gets_the_factor_that_its_canary_shows() -> None:
    found = factors(fitted(steps(CANARIES[0], SLOWER)))
    assert found == pytest.approx(
        {Phase.FORWARD: 1.1, Phase.BACKWARD_DATA: 1.25, Phase.BACKWARD_WEIGHT: 1.25, Phase.UPDATE: 0.9}
    )


def test_the_factor_is_the_geometric_mean_and_its_spread_that_between_networks() -> None:
    calibration = fitted(
        steps(CANARIES[0], dict.fromkeys(STEP_PARTS, 1.0)), steps(CANARIES[1], dict.fromkeys(STEP_PARTS, 1.44))
    )
    # The second network counts by the share that forward has in its step.
    shares = [kernels_s(c, "forward") / sum(kernels_s(c, part) for part in STEP_PARTS) for c in CANARIES]
    assert factors(calibration)[Phase.FORWARD] == pytest.approx(1.44 ** (shares[1] / sum(shares)))
    # Two networks lie ln 1.2 from their mean; the assumed spread counts as two more, and the mean of two is not sure.
    expected = math.sqrt((2 * STEP_SD**2 + 2 * math.log(1.2) ** 2) / 3 * 1.5)
    forward = next(fit for fit in calibration.fits if fit.family == STEP and fit.phase is Phase.FORWARD)
    assert forward.residual_sd == pytest.approx(expected)
    # Each network is 1.44 times, or 1 / 1.44 of, what the other one says: |1.44 - 1| and |1 / 1.44 - 1|.
    assert forward.held_out_error == pytest.approx((0.44 + (1 - 1 / 1.44)) / 2)
    assert forward.shapes == 2


def test_parts_that_scatter_against_each_other_do_not_widen_the_step() -> None:
    uneven = [steps(canary, SLOWER | {"forward": 1.0, "backward": 1.0, "update": 1.0}) for canary in CANARIES]
    even = next(fit for fit in fitted(*uneven).fits if fit.family == STEP)
    # Forward takes longer by what backward takes less, in one network.
    forward, backward = uneven[0][:2]
    shifted = 0.2 * min(forward.median_s, backward.median_s)
    uneven[0][0] = replace(forward, device_s=(forward.median_s + shifted,) * 5)
    uneven[0][1] = replace(backward, device_s=(backward.median_s - shifted,) * 5)
    moved = {fit.phase: fit for fit in fitted(*uneven).fits if fit.family == STEP}
    assert moved[Phase.FORWARD].constants[0].value > 1.01
    assert moved[Phase.BACKWARD_DATA].constants[0].value < 0.99
    assert moved[Phase.FORWARD].residual_sd == pytest.approx(even.residual_sd)


def test_a_price_is_the_kernel_times_the_factor_and_a_sweep_agrees() -> None:
    calibration = fitted(steps(CANARIES[0], SLOWER))
    timer, alone = (CalibratedTimer(c, Execution()) for c in (calibration, of_kernels_alone(calibration)))
    for call in model_calls(CANARIES[0].graph, CANARIES[0].samples):
        other = call if call.phase is Phase.UPDATE else replace(call, samples=9)
        for asked in (call, other):
            factor = factors(calibration)[asked.phase]
            assert timer.price([asked]).middle_s == pytest.approx(factor * alone.price([asked]).middle_s)
            numbers = np.array([asked.samples])
            curve_s = timer.over_samples([asked], numbers).sums(np.ones((1, 1)), numbers)
            assert curve_s[0, 0] == pytest.approx(timer.price([asked]).middle_s[0])


def test_factors_replace_the_assumed_spread_and_widen_every_price() -> None:
    without, with_factors = fitted(), fitted(steps(CANARIES[0], SLOWER))
    assert without.common_sd == pytest.approx(math.hypot(with_factors.common_sd, STEP_SD))
    assert not has_step_factors(without)
    assert of_kernels_alone(without).common_sd == pytest.approx(with_factors.common_sd)
    asked = [next(iter(model_calls(CANARIES[0].graph, CANARIES[0].samples)))]
    wide, narrow = (
        float(np.std(np.log(CalibratedTimer(c, Execution()).price(asked).draws_s)))
        for c in (with_factors, of_kernels_alone(with_factors))
    )
    assert wide > narrow


@pytest.mark.parametrize("flag", ["preempted", "throttled", "launch-bound"])
def test_a_disturbed_canary_says_nothing(flag: str) -> None:
    disturbed = [replace(part, flags=(flag,)) for part in steps(CANARIES[0], SLOWER)]
    assert not has_step_factors(fitted(disturbed))


def test_a_canary_without_its_kernels_says_nothing() -> None:
    unmeasured = Canary("canary-tokens", 4)
    assert not has_step_factors(fitted(steps(unmeasured, SLOWER)))


def test_a_canary_of_another_version_is_passed_over() -> None:
    strange = [replace(part, case={"model": "canary-of-old", "samples": 4}) for part in steps(CANARIES[0], SLOWER)]
    assert not has_step_factors(fitted(strange))
