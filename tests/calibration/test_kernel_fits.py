from __future__ import annotations

import numpy as np
import pytest

from calibration.features import coefficients, features, seconds
from calibration.grid import generic_calls
from calibration.kernels import UNTESTED_SD, FamilyFit, fit_family
from oracle.constants import KernelFit, MeasuredShape
from oracle.estimate import DRAWS, Floats
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import Elementwise
from oracle.pricing import LayerCall

CONV = generic_calls()[("conv2d", Phase.FORWARD)]
RELU = generic_calls()[("elementwise_relu", Phase.FORWARD)]
TRUTH = np.array([1e-5, 1 / 5e10, 1 / 1e10, 3e-5])
"""Seconds per launch, FLOP, byte and step of an optimizer."""
RATES = {"flop_per_s", "bytes_per_s"}


def shapes(calls: tuple[LayerCall, ...], times: Floats) -> list[MeasuredShape]:
    return [
        MeasuredShape(call.layer, call.phase, call.samples, "fp32/channels_first", time, 0.01, 5)
        for call, time in zip(calls, times.tolist(), strict=True)
    ]


def fit(calls: tuple[LayerCall, ...], factors: Floats | float = 1.0, truth: Floats = TRUTH) -> FamilyFit:
    return fit_family(shapes(calls, seconds(features(calls, Execution()), truth) * factors))


def found(result: FamilyFit) -> KernelFit:
    assert result.fit is not None
    return result.fit


def noise(sd: float, count: int, seed: int = 0) -> Floats:
    return np.exp(sd * np.random.default_rng(seed).standard_normal(count))


def test_exact_times_give_exact_constants() -> None:
    values = {constant.quantity: constant.value for constant in found(fit(CONV)).constants}
    assert values == pytest.approx({"launch_s": 1e-5, "flop_per_s": 5e10, "bytes_per_s": 1e10}, rel=1e-6)


def test_exact_times_predict_held_out_layers_exactly() -> None:
    assert found(fit(CONV)).held_out_error == pytest.approx(0, abs=1e-6)


def test_held_out_error_is_that_of_the_noise() -> None:
    # Noise of sd 10 % has a mean absolute error of sqrt(2 / pi) * 10 % = 8 %; the constants' own error adds to it.
    errors = [found(fit(CONV, noise(0.1, len(CONV), seed))).held_out_error for seed in range(20)]
    assert np.median(errors) == pytest.approx(0.09, abs=0.025)


def test_constants_carry_a_range_draws_and_their_work() -> None:
    result = found(fit(CONV, noise(0.05, len(CONV))))
    table = features(CONV, Execution())
    assert (result.flop_lo, result.flop_hi) == (table[:, 1].min(), table[:, 1].max())
    assert (result.shapes, result.samples) == (len(CONV), 5 * len(CONV))
    for constant in result.constants:
        assert len(constant.draws) == DRAWS
        inside = np.mean([constant.lo <= draw <= constant.hi for draw in constant.draws])
        assert inside == pytest.approx(0.8, abs=0.1)


def test_a_memory_bound_family_has_no_flop_rate() -> None:
    assert [constant.quantity for constant in found(fit(RELU)).constants] == ["launch_s", "bytes_per_s"]


def test_prices_are_unbiased_for_the_mean_under_misfit() -> None:
    # Every shape is off its line by 30 %: sums need the mean factor, exp(0.3^2 / 2). A fit of rows divided by the
    # measured time gives exp(-1.5 * 0.3^2) in its place, 17 % less.
    table = features(CONV, Execution())
    ratios = []
    for seed in range(60):
        per_unit, _ = coefficients(found(fit(CONV, noise(0.3, len(CONV), seed))).constants)
        ratios.append(np.mean(seconds(table, per_unit) / seconds(table, TRUTH)))
    assert np.mean(ratios) / np.exp(0.3**2 / 2) == pytest.approx(1, abs=0.06)


def test_one_slow_shape_hardly_moves_the_constants() -> None:
    factors = noise(0.02, len(CONV))
    factors[5] = 6.0
    values = {constant.quantity: constant.value for constant in found(fit(CONV, factors)).constants}
    assert values == pytest.approx({"launch_s": 1e-5, "flop_per_s": 5e10, "bytes_per_s": 1e10}, rel=0.06)


def test_a_constant_that_no_time_depends_on_is_dropped() -> None:
    # Without noise the coefficient is exactly zero; the others stay exact.
    result = fit(CONV, truth=np.array([1e-5, 1 / 5e10, 0.0, 0.0]))
    values = {constant.quantity: constant.value for constant in found(result).constants}
    assert values == pytest.approx({"launch_s": 1e-5, "flop_per_s": 5e10}, rel=1e-6)
    assert [dropped.quantity for dropped in result.dropped] == ["bytes_per_s"]


def test_launches_that_no_shape_shows_are_dropped_with_a_reason() -> None:
    # Images of 20 ms and more say nothing of launches of 10 us under 5 % noise.
    large = tuple(
        LayerCall(Elementwise("relu", (64, 256, 256)), Phase.FORWARD, samples) for samples in (8, 12, 16, 24, 32)
    )
    result = fit(large, noise(0.05, 5))
    assert [constant.quantity for constant in found(result).constants] == ["bytes_per_s"]
    assert [dropped.quantity for dropped in result.dropped] == ["launch_s"]
    assert result.dropped[0].why in ("no measured time depends on it", "its interval spans more than a factor of 5")


def test_equal_intensities_cannot_tell_arithmetic_from_traffic() -> None:
    # One convolution on more and more samples, large enough to drown its weights: one rate explains all times.
    call = CONV[4]
    calls = tuple(LayerCall(call.layer, call.phase, samples) for samples in (1, 2, 4, 8, 16, 32, 64, 128))
    result = fit(calls, noise(0.02, 8))
    assert len({constant.quantity for constant in found(result).constants} & RATES) == 1


def test_one_shape_gives_one_rate_and_says_that_it_is_untested() -> None:
    result = fit(CONV[1:2])
    (constant,) = found(result).constants
    assert constant.quantity == "flop_per_s"
    assert found(result).residual_sd == UNTESTED_SD
    assert {dropped.why for dropped in result.dropped} == {"1 shape cannot tell 2 constants apart"}


@pytest.mark.parametrize("count", range(1, 9))
def test_a_constant_needs_two_shapes(count: int) -> None:
    result = fit(CONV[:count], noise(0.01, count))
    kept = len(result.fit.constants) if result.fit else 0
    assert kept <= max(1, count // 2)
    assert kept + len(result.dropped) == 3


def test_siblings_alone_leave_a_fit_untested() -> None:
    calls = tuple(LayerCall(RELU[3].layer, Phase.FORWARD, samples) for samples in (1, 2, 4, 8))
    assert found(fit(calls)).held_out_error == UNTESTED_SD


def test_times_without_any_order_give_no_constants() -> None:
    # Times that fall while the work grows: no constant explains them within a factor of 5.
    result = fit_family(shapes(RELU[:4], np.array([1e-1, 1e-3, 1e-6, 1e-8])))
    assert result.fit is None
    assert {dropped.quantity: dropped.why for dropped in result.dropped} == {
        "launch_s": "alone it does not explain times that grow with the work",
        "bytes_per_s": "its interval spans more than a factor of 5",
    }


def test_a_launch_alone_is_no_fit_of_times_that_grow() -> None:
    # Seven tiny calls say 10 us; one large call that fits nothing else takes 3 ms. Better no price than 10 us for all.
    tiny = tuple(LayerCall(Elementwise("relu", (4, 2, 2)), Phase.FORWARD, samples) for samples in range(1, 8))
    times = np.array([1e-5] * 7 + [3e-3])
    result = fit_family(shapes((*tiny, RELU[4]), times))
    assert result.fit is None or {constant.quantity for constant in result.fit.constants} != {"launch_s"}


def test_a_launch_alone_fits_times_that_are_alike() -> None:
    tiny = tuple(LayerCall(Elementwise("relu", (4, 2, 2)), Phase.FORWARD, samples) for samples in range(1, 8))
    result = found(fit(tiny, noise(0.05, 7)))
    assert [constant.quantity for constant in result.constants] == ["launch_s"]


def test_draws_differ_between_measurements_and_not_between_fits() -> None:
    factors = noise(0.05, len(CONV))
    once, again, other = (found(fit(CONV, f)).constants[0] for f in (factors, factors, noise(0.05, len(CONV), 1)))
    assert once == again
    relative = np.corrcoef(once.draws, other.draws)[0, 1]
    assert abs(relative) < 0.5
