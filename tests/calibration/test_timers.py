from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.recovery import small_residual_network
from calibration.design import model_calls
from calibration.timers import CalibratedTimer
from oracle.constants import Calibration
from oracle.errors import NotCalibrated
from oracle.estimate import DRAWS, Estimate
from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.layers import Elementwise, Linear
from oracle.pricing import LayerCall, Method
from oracle.windows import Conv
from profiler.backends.simulated import true_seconds

NEW_CONV = Conv.of((48, 20, 20), 80, 3, padding=1, bias=False)


def forward(layer: Layer, samples: int = 8) -> LayerCall:
    return LayerCall(layer, Phase.FORWARD, samples)


def step(calibration: Calibration, samples: int) -> Estimate:
    counts = model_calls(small_residual_network(), samples)
    return CalibratedTimer(calibration, Execution()).price(list(counts)).total(np.array(list(counts.values()), float))


def true_step(samples: int) -> float:
    counts = model_calls(small_residual_network(), samples)
    return sum(n * true_seconds(c.layer, c.phase, c.samples, Execution()) for c, n in counts.items())


def test_a_measured_shape_is_looked_up(calibration: Calibration) -> None:
    shape = calibration.shapes[0]
    prices = CalibratedTimer(calibration, Execution()).price([LayerCall(shape.layer, shape.phase, shape.samples)])
    assert prices.methods == (Method.MEASURED,)
    assert prices.middle_s[0] == shape.seconds
    spread = np.hypot(shape.log_sd, calibration.common_sd)
    assert np.log(prices.draws_s[0]).std() == pytest.approx(spread, rel=0.25)


def test_an_update_is_looked_up_whatever_the_samples(calibration: Calibration) -> None:
    timer = CalibratedTimer(calibration, Execution())
    update = next(shape for shape in calibration.shapes if shape.phase is Phase.UPDATE)
    assert timer.price([LayerCall(update.layer, Phase.UPDATE, 64)]).methods == (Method.MEASURED,)


def test_a_new_shape_inside_the_range_is_fitted(calibration: Calibration) -> None:
    prices = CalibratedTimer(calibration, Execution()).price([forward(NEW_CONV)])
    assert prices.methods == (Method.FITTED,)
    assert prices.middle_s[0] == pytest.approx(true_seconds(NEW_CONV, Phase.FORWARD, 8, Execution()), rel=0.1)


def test_outside_the_range_the_residual_is_doubled(calibration: Calibration) -> None:
    alone = replace(calibration, common_sd=0.0)  # without what both have in common
    prices = CalibratedTimer(alone, Execution()).price([forward(NEW_CONV), forward(NEW_CONV, 100_000)])
    assert prices.methods == (Method.FITTED, Method.EXTRAPOLATED)
    spread = np.log(prices.draws_s).std(axis=1)
    assert spread[1] > 1.3 * spread[0]


def test_a_step_on_measured_shapes_is_near_the_truth(calibration: Calibration) -> None:
    estimate = step(calibration, 8)
    assert estimate.middle == pytest.approx(true_step(8), rel=0.03)
    lo, hi = estimate.interval(0.9)
    assert lo < true_step(8) < hi


def test_a_step_on_other_samples_is_near_the_truth(calibration: Calibration) -> None:
    assert step(calibration, 11).middle == pytest.approx(true_step(11), rel=0.05)


def test_middles_of_sums_are_the_means_of_their_draws(calibration: Calibration) -> None:
    estimate = step(calibration, 11)
    assert estimate.mean == pytest.approx(estimate.middle, rel=0.01)


def test_an_answer_does_not_differ_from_itself(calibration: Calibration) -> None:
    difference = step(calibration, 11) - step(calibration, 11)
    assert not difference.draws.any()


def test_shapes_scatter_independently_and_drift_together(calibration: Calibration) -> None:
    quiet = replace(calibration, common_sd=0.0)
    loud = replace(calibration, common_sd=0.5)
    calls = [forward(Elementwise("relu", (channels, 10, 10))) for channels in range(16, 80)]
    independent, common = (
        np.corrcoef(np.log(CalibratedTimer(each, Execution()).price(calls).draws_s)) for each in (quiet, loud)
    )
    others = ~np.eye(len(calls), dtype=bool)
    assert common[others].mean() > 0.95
    assert independent[others].mean() < 0.6  # what is left is shared through the constants


def test_prices_keep_the_order_and_shape_of_the_question(calibration: Calibration) -> None:
    timer = CalibratedTimer(calibration, Execution())
    calls = [forward(NEW_CONV), forward(Linear(64, 32)), forward(NEW_CONV)]
    prices = timer.price(calls)
    assert prices.draws_s.shape == (3, DRAWS)
    assert prices.middle_s[0] == prices.middle_s[2] != prices.middle_s[1]
    alone = [timer.price([call]).middle_s[0] for call in calls]
    assert prices.middle_s.tolist() == alone


def test_no_questions_have_no_prices(calibration: Calibration) -> None:
    assert len(CalibratedTimer(calibration, Execution()).price([]).middle_s) == 0


def test_an_unmeasured_variant_of_a_convolution_is_an_extrapolation(calibration: Calibration) -> None:
    depthwise = Conv.of((64, 14, 14), 64, 3, padding=1, groups=64)
    assert CalibratedTimer(calibration, Execution()).price([forward(depthwise)]).methods == (Method.EXTRAPOLATED,)


def test_an_unmeasured_family_is_named_with_its_layer(calibration: Calibration) -> None:
    with pytest.raises(NotCalibrated, match="'simulated' of simulated device has no elementwise_gelu forward kernels"):
        CalibratedTimer(calibration, Execution()).price([forward(Elementwise("gelu", (64, 8, 8)))])


def test_an_unmeasured_execution_lists_the_measured_ones(calibration: Calibration) -> None:
    with pytest.raises(
        NotCalibrated,
        match="no linear forward kernels for bf16/channels_first; it was measured for fp32/channels_first",
    ):
        CalibratedTimer(calibration, Execution("bf16")).price([forward(Linear(64, 32))])
    with pytest.raises(NotCalibrated, match="no update kernels for fp32/adam; it was measured for fp32/sgd_momentum"):
        CalibratedTimer(calibration, Execution(optimizer="adam")).price([LayerCall(Linear(64, 32), Phase.UPDATE, 1)])


def test_a_family_without_constants_is_scaled_from_its_nearest_shape(calibration: Calibration) -> None:
    shapes_only = replace(calibration, fits=(), common_sd=0.0)
    conv = next(shape for shape in calibration.shapes if shape.layer.kind == "conv" and shape.phase is Phase.FORWARD)
    twice = LayerCall(conv.layer, conv.phase, 2 * conv.samples)
    prices = CalibratedTimer(shapes_only, Execution()).price([twice])
    assert prices.methods == (Method.EXTRAPOLATED,)
    # Twice the samples are at most twice the work: weights are read once.
    assert conv.seconds < prices.middle_s[0] <= 2 * conv.seconds * (1 + 1e-9)
    assert np.log(prices.draws_s[0]).std() > 0.3


def test_over_many_samples_every_middle_is_its_price(calibration: Calibration) -> None:
    # Measured shapes at some of the samples, fitted ones elsewhere, and relu without constants but for its shapes.
    bare = replace(calibration, fits=tuple(fit for fit in calibration.fits if fit.family != "elementwise_relu"))
    timer = CalibratedTimer(bare, Execution())
    measured = [LayerCall(shape.layer, shape.phase, 1) for shape in bare.shapes]
    calls = list(dict.fromkeys([*measured, forward(NEW_CONV, 1), LayerCall(NEW_CONV, Phase.UPDATE, 1)]))
    samples = np.array(sorted({1, 3, 1000, *(shape.samples for shape in bare.shapes)}))
    found = timer.over_samples(calls, samples).sums(np.eye(len(calls)), samples)
    for column, count in enumerate(samples.tolist()):
        prices = timer.price([replace(call, samples=count) for call in calls])
        assert found[:, column] == pytest.approx(prices.middle_s, rel=1e-9)
