"""A profile as a calibration: the profiled step adds up, other batches scale from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibration.design import model_calls
from calibration.features import canonical
from calibration.insitu import ProfiledStep, with_profiles
from calibration.measured_shapes import ANCHORED_SD
from calibration.step_factor import STEP_SD
from calibration.timers import CalibratedTimer
from oracle.constants import Calibration
from oracle.errors import BadInput
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import Elementwise, Linear, Loss
from oracle.model import INPUT, GraphBuilder, ModelGraph
from oracle.plan import StepPart, tasks_of
from oracle.pricing import LayerCall, Method
from oracle.windows import Conv
from profiler.case import Case
from profiler.measurement import Environment, Measurement

CREATED_AT = "2026-02-03T04:05:06+00:00"
SLOWER = 1.25
"""How much longer every kernel takes in situ than the base calibration says."""


def small_net() -> ModelGraph:
    build = GraphBuilder("small", (16, 20, 20))
    build.add("one", Conv.of((16, 20, 20), 32, 3, padding=1, bias=False), INPUT)
    build.add("relu", Elementwise("relu", build.shape()))
    build.add("two", Conv.of(build.shape(), 48, 3, padding=1, bias=False))
    build.add("fc", Linear(48 * 400, 10))
    build.add("loss", Loss("cross_entropy", (10,)))
    return build.graph()


def in_situ(base: Calibration, graph: ModelGraph, samples: int) -> tuple[Measurement, ...]:
    """Measurements of every call of a step, each SLOWER than its price."""
    timer, execution = CalibratedTimer(base, Execution()), Execution()
    found = []
    for call in model_calls(graph, samples):
        case = Case(call, execution)
        seconds = SLOWER * float(timer.price([call]).middle_s[0])
        found.append(
            Measurement(
                micro=call.layer.kind,
                case=case.to_dict(),
                phase=call.phase.value,
                execution=case.execution_key,
                device_s=(seconds,) * 7,
                host_s=(seconds,) * 7,
                inner=1,
                device=base.device,
                environment=Environment(base.environment, {}),
                run_id="profile-1",
                taken_at=CREATED_AT,
                stopped="samples",
            )
        )
    return tuple(found)


def parts_s(base: Calibration, graph: ModelGraph, samples: int) -> dict[str, float]:
    """Seconds of the parts of a step by a calibration."""
    timer, parts = CalibratedTimer(base, Execution()), {"forward": 0.0, "backward": 0.0, "update": 0.0}
    for task in tasks_of(graph, graph.nodes, samples):
        part = {StepPart.FORWARD: "forward", StepPart.UPDATE: "update"}.get(task.part, "backward")
        parts[part] += task.count * float(timer.price([task.call]).middle_s[0])
    return parts


@pytest.fixture(scope="module")
def profiled(calibration: Calibration) -> Calibration:
    graph = small_net()
    measured = {name: 1.1 * SLOWER * seconds for name, seconds in parts_s(calibration, graph, 8).items()}
    step = ProfiledStep(graph, 8, Execution(), in_situ(calibration, graph, 8), measured)
    return with_profiles(calibration, [step], "profiled", CREATED_AT)


def test_the_profiled_step_adds_up_part_by_part(calibration: Calibration, profiled: Calibration) -> None:
    before, after = (parts_s(known, small_net(), 8) for known in (calibration, profiled))
    for part, seconds in before.items():
        assert after[part] == pytest.approx(1.1 * SLOWER * seconds)


@pytest.mark.parametrize("samples", [2, 16, 64])
def test_other_batches_take_the_factor_of_the_profiled_one(
    calibration: Calibration, profiled: Calibration, samples: int
) -> None:
    # Every layer was slower by one factor, and the base's fits say how time grows: so the whole step is.
    fits_only = replace(calibration, shapes=tuple(s for s in calibration.shapes if s.phase is Phase.UPDATE))
    before, after = (parts_s(known, small_net(), samples) for known in (fits_only, profiled))
    at_eight = parts_s(fits_only, small_net(), 8)
    for part in ("forward", "backward"):
        grown = before[part] / at_eight[part]
        assert after[part] == pytest.approx(grown * parts_s(profiled, small_net(), 8)[part], rel=0.05)


def test_a_layers_own_measurement_carries_over_to_other_batches(calibration: Calibration) -> None:
    layer = Conv.of((48, 20, 20), 80, 3, padding=1, bias=False)
    call = LayerCall(layer, Phase.FORWARD, 8)
    alone = CalibratedTimer(calibration, Execution())
    fitted = {n: float(alone.price([replace(call, samples=n)]).middle_s[0]) for n in (8, 16, 32)}
    shape = replace(calibration.shapes[0], layer=layer, phase=Phase.FORWARD, samples=8, seconds=1.4 * fitted[8])
    shape = replace(shape, execution=Execution().kernel_key)
    anchored = CalibratedTimer(replace(calibration, shapes=(*calibration.shapes, shape)), Execution())
    prices = anchored.price([replace(call, samples=n) for n in (8, 16, 32)])
    assert prices.middle_s / np.array(list(fitted.values())) == pytest.approx([1.4, 1.4, 1.4])
    assert prices.methods[:2] == (Method.MEASURED, Method.FITTED)
    curve = anchored.over_samples([call], np.array([8, 16, 32]))
    lines = curve.lines[0]
    assert lines[0] + 16 * lines[1] == pytest.approx(1.4 * fitted[16])


def test_the_spread_of_a_carried_price_grows_with_the_distance(calibration: Calibration) -> None:
    base = replace(calibration, common_sd=0.0)
    shape = next(shape for shape in base.shapes if shape.layer.kind == "conv" and shape.phase is Phase.FORWARD)
    timer = CalibratedTimer(base, Execution())
    factors = np.array([2.0, 8.0])
    calls = [LayerCall(shape.layer, shape.phase, int(shape.samples * factor)) for factor in factors]
    spreads = np.log(timer.price(calls).draws_s).std(axis=1)
    assert spreads[0] < spreads[1]
    assert spreads[1] >= 0.7 * ANCHORED_SD * np.log(8)


def test_what_a_step_does_beside_its_kernels_is_no_longer_a_spread(profiled: Calibration) -> None:
    assert profiled.common_sd < STEP_SD
    assert "whose layers were timed in situ" in profiled.notes[-1]
    assert "small:8" in profiled.notes[-1]


def test_the_base_stays_as_it_is_and_keeps_its_other_shapes(calibration: Calibration, profiled: Calibration) -> None:
    keys = {shape.key for shape in profiled.shapes}
    assert keys >= {shape.key for shape in calibration.shapes}
    assert profiled.fits == calibration.fits
    calls = {canonical(call) for call in model_calls(small_net(), 8)}
    assert {LayerCall(s.layer, s.phase, s.samples) for s in profiled.shapes} >= calls


def test_a_profile_of_another_environment_is_refused(calibration: Calibration) -> None:
    graph = small_net()
    elsewhere = tuple(
        replace(item, environment=Environment({"device": "another"}, {})) for item in in_situ(calibration, graph, 8)
    )
    step = ProfiledStep(graph, 8, Execution(), elsewhere, parts_s(calibration, graph, 8))
    with pytest.raises(BadInput, match="in another environment than the profile"):
        with_profiles(calibration, [step], "profiled", CREATED_AT)


def test_a_shape_of_two_profiled_models_is_their_geometric_mean(calibration: Calibration) -> None:
    graph = small_net()
    whole, measurements = parts_s(calibration, graph, 8), in_situ(calibration, graph, 8)
    steps = [
        ProfiledStep(graph, 8, Execution(), measurements, {part: share * seconds for part, seconds in whole.items()})
        for share in (1.0, 4.0)
    ]
    both = parts_s(with_profiles(calibration, steps, "both", CREATED_AT), graph, 8)
    assert both == pytest.approx({part: 2.0 * seconds for part, seconds in whole.items()})
