"""A family is priced by what its left-out layers like best: constants that add up, or a roofline with a residual."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from calibration.family_fit import FittedFamily, fit_best, shape_quantities
from calibration.features import features
from calibration.grid import generic_calls
from calibration.processors import processor_of
from calibration.quantities import Processor
from calibration.roofline import Roofline
from calibration.stored_model import read_model, roofline_of
from calibration.timers import CalibratedTimer
from oracle.constants import Calibration, KernelFit, MeasuredShape
from oracle.errors import BadInput
from oracle.estimate import DRAWS, Floats
from oracle.execution import Execution
from oracle.interchange import calibration_from_json, calibration_to_json
from oracle.layer import Layer, Phase
from oracle.layers import Elementwise, Linear, Norm
from oracle.pricing import LayerCall, Method
from oracle.stored_array import StoredArray
from oracle.updates import together
from oracle.windows import Conv

GPU = Processor(80, 6 * 2**20)
TRUTH = Roofline(launch_s=8e-6, s_per_flop=1 / 12e12, s_per_byte=1 / 800e9, wave_exponent=0.6)
KEY = "fp32/channels_first"


def linears(count: int, seed: int = 0) -> list[Layer]:
    rng = np.random.default_rng(seed)
    return [Linear(int(wide), int(narrow), bias=False) for wide, narrow in 2 ** rng.uniform(4, 12, (count, 2))]


def measured(
    layers: list[Layer], seconds: Floats, phase: Phase = Phase.FORWARD, samples: int = 64
) -> list[MeasuredShape]:
    return [
        MeasuredShape(layer, phase, samples, KEY, time, 0.01, 20)
        for layer, time in zip(layers, seconds.tolist(), strict=True)
    ]


def on_a_gpu(layers: list[Layer], seed: int = 1) -> list[MeasuredShape]:
    """A device with waves and tiles, and 30 % lost where the features are odd."""
    kernels = shape_quantities(measured(layers, np.ones(len(layers))), GPU)
    odd = np.where(kernels.classes[:, 0] == 0, 1.3, 1.0)
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.03, len(layers)))
    return measured(layers, TRUTH.seconds(kernels) * odd * noise)


@functools.cache
def fitted() -> FittedFamily:
    return fit_best(on_a_gpu(linears(120)), GPU)


def chosen(result: FittedFamily) -> KernelFit:
    assert result.fit is not None
    return result.fit


def calibration(fit: KernelFit) -> Calibration:
    return Calibration("gpu", "some GPU", "2026-01-01T00:00:00Z", {}, "key", (fit,), (), 0.0)


def test_a_device_with_waves_gets_a_roofline_and_its_constants_are_named() -> None:
    fit = chosen(fitted())
    assert fit.law == "roofline"
    assert fit.held_out_error < 0.7 * (fitted().additive_error or 0.0)
    values = {constant.quantity: constant for constant in fit.constants}
    assert set(values) == {"launch_s", "flop_per_s", "bytes_per_s", "wave_exponent"}
    # Half of the features are odd, which costs 30 %: 15 % in the middle.
    assert values["launch_s"].value == pytest.approx(8e-6 * 1.15, rel=0.15)
    assert values["flop_per_s"].value == pytest.approx(12e12 / 1.15, rel=0.15)
    assert values["launch_s"].identified
    assert values["flop_per_s"].identified


def test_a_device_whose_times_add_up_keeps_constants_that_add_up() -> None:
    layers = linears(60)
    work = [layer.work(Phase.FORWARD, 64) for layer in layers]
    times = np.array([5e-6 + item.flop / 1e12 + item.bytes / 1e11 for item in work])
    noise = np.exp(np.random.default_rng(2).normal(0, 0.05, 60))
    assert chosen(fit_best(measured(layers, times * noise), GPU)).law == "additive"


def test_few_shapes_keep_constants_that_add_up() -> None:
    assert chosen(fit_best(on_a_gpu(linears(15)), GPU)).law == "additive"


def test_a_stored_family_predicts_the_same_and_takes_little_room() -> None:
    fit = chosen(fitted())
    again = calibration_from_json(calibration_to_json(calibration(fit))).fits[0]
    assert again == fit
    kernels = shape_quantities(on_a_gpu(linears(300, 5)), GPU)
    one, other = (read_model(each).model.predict(kernels) for each in (fit, again))
    assert np.abs(np.log(one.median_s / other.median_s)).max() <= 1e-9
    assert sum(len(array.numbers) for array in fit.arrays) <= 200_000


def test_the_stored_constants_are_those_that_predict() -> None:
    fit = chosen(fitted())
    assert read_model(fit).model.branches[0].roofline == roofline_of(fit.constants)


def test_a_changed_constant_is_refused_by_its_canaries() -> None:
    fit = chosen(fitted())
    faster = replace(fit.constants[1], value=fit.constants[1].value * 1.001)
    changed = replace(fit, constants=(fit.constants[0], faster, *fit.constants[2:]))
    kernels = shape_quantities(on_a_gpu(linears(3)), GPU)
    with pytest.raises(BadInput, match=r"model of linear.forward.*canary"):
        assert read_model(changed).model
    with pytest.raises(BadInput, match=r"model of linear.forward.*canary"):
        read_model(changed).predict_with_draws(kernels, np.zeros((3, DRAWS)))
    with pytest.raises(BadInput, match=r"model of linear.forward.*canary"):
        CalibratedTimer(calibration(changed), Execution()).price([LayerCall(linears(1)[0], Phase.FORWARD, 64)])


def test_canaries_beside_the_first_kernels_change_nothing() -> None:
    stored = read_model(chosen(fitted()))
    kernels = shape_quantities(on_a_gpu(linears(9, 5)), GPU)
    own = np.random.default_rng(0).standard_normal((9, DRAWS))
    first, again = (stored.predict_with_draws(kernels, own) for _ in range(2))
    assert len(first[0].median_s) == 9
    assert first[0].median_s == pytest.approx(again[0].median_s, rel=1e-9)
    assert first[1] == pytest.approx(again[1], rel=1e-6)
    assert stored.model.predict(kernels).log_sd == pytest.approx(first[0].log_sd, rel=1e-6)


@pytest.mark.parametrize("name", ["processor", "z_scores", "coverage.axes", "canary.log_s"])
def test_a_missing_array_is_named(name: str) -> None:
    fit = chosen(fitted())
    with pytest.raises(BadInput, match=f"'{name}' is missing"):
        read_model(replace(fit, arrays=tuple(array for array in fit.arrays if array.name != name)))


def test_a_damaged_array_is_refused() -> None:
    fit = chosen(fitted())
    arrays = [replace(array, numbers=bytes(8)) if array.name == "z_scores" else array for array in fit.arrays]
    with pytest.raises(BadInput, match="array z_scores has 1 numbers"):
        read_model(replace(fit, arrays=tuple(arrays)))


def test_trees_that_ask_for_a_column_that_is_not_there_are_refused() -> None:
    fit = chosen(fitted())
    (old,) = (array for array in fit.arrays if array.name == "branch0.trees.conditions")
    changed = old.read().copy()
    changed[0] = 1000
    arrays = [StoredArray.of(old.name, changed) if array is old else array for array in fit.arrays]
    kernels = shape_quantities(on_a_gpu(linears(3)), GPU)
    with pytest.raises(BadInput, match=r"model of linear.forward.* cannot be used"):
        read_model(replace(fit, arrays=tuple(arrays))).predict_with_draws(kernels, np.zeros((3, DRAWS)))


def test_a_timer_prices_with_the_mean_and_says_what_it_extrapolates() -> None:
    fit = chosen(fitted())
    timer = CalibratedTimer(calibration(fit), Execution())
    inside, outside = Linear(1001, 602, bias=False), Linear(1001, 602 * 4096, bias=False)
    prices = timer.price([LayerCall(inside, Phase.FORWARD, 64), LayerCall(outside, Phase.FORWARD, 64)])
    assert prices.methods == (Method.FITTED, Method.EXTRAPOLATED)
    assert prices.draws_s.mean(axis=1) == pytest.approx(prices.middle_s)
    kernels = shape_quantities(measured([inside], np.ones(1)), GPU)
    assert prices.middle_s[0] == pytest.approx(read_model(fit).model.predict(kernels).mean_s[0])
    assert prices.middle_s[0] == pytest.approx(TRUTH.seconds(kernels)[0], rel=0.15)


def test_a_price_does_not_depend_on_what_else_is_asked() -> None:
    calls = [LayerCall(layer, Phase.FORWARD, 48) for layer in linears(30, 9)]
    together = CalibratedTimer(calibration(chosen(fitted())), Execution()).price(calls)
    for index in (0, 17):
        alone = CalibratedTimer(calibration(chosen(fitted())), Execution()).price([calls[index]])
        assert alone.draws_s[0] == pytest.approx(together.draws_s[index])


def test_over_many_samples_a_roofline_is_priced_at_each_or_close_to_it() -> None:
    timer = CalibratedTimer(calibration(chosen(fitted())), Execution())
    call = LayerCall(Linear(1001, 602, bias=False), Phase.FORWARD, 1)
    few, many = np.array([3, 64, 200]), np.arange(1, 400)
    for samples, close in ((few, 1e-9), (many, 0.05)):
        found = timer.over_samples([call], samples).sums(np.ones((1, 1)), samples)[0]
        asked = [replace(call, samples=count) for count in samples.tolist()]
        assert found == pytest.approx(timer.price(asked).middle_s, rel=close)


def test_shapes_that_resemble_one_another_share_their_error() -> None:
    timer = CalibratedTimer(calibration(chosen(fitted())), Execution())
    alike = [LayerCall(Linear(1000 + 2 * step, 1002, bias=False), Phase.FORWARD, 64) for step in range(12)]
    spread = np.log(timer.price(alike).draws_s)
    correlation = np.corrcoef(spread)[~np.eye(len(alike), dtype=bool)]
    assert correlation.mean() > 0.05


def test_convolutions_of_another_variant_are_extrapolated_by_their_stand_in() -> None:
    rng = np.random.default_rng(3)
    layers: list[Layer] = [
        Conv.of((int(c), 28, 28), int(f), 3, padding=1, bias=False) for c, f in 2 ** rng.uniform(3, 9, (60, 2))
    ]
    kernels = shape_quantities(measured(layers, np.ones(60), samples=8), GPU)
    fit = chosen(fit_best(measured(layers, TRUTH.seconds(kernels), samples=8), GPU))
    assert fit.law == "roofline"
    timer = CalibratedTimer(calibration(fit), Execution())
    asked: list[Layer] = [
        Conv.of((64, 28, 28), 64, 3, padding=1, bias=False),
        Conv.of((64, 28, 28), 64, 3, padding=1, groups=64, bias=False),
        Conv.of((64, 28, 28), 64, 1, bias=False),
        Conv.of((64, 28, 28), 64, 3, padding=1, bias=False, transposed=True),
    ]
    methods = timer.price([LayerCall(layer, Phase.FORWARD, 8) for layer in asked]).methods
    assert methods == (Method.FITTED, *[Method.EXTRAPOLATED] * 3)


def test_updates_of_layers_of_all_kinds_are_one_family() -> None:
    rng = np.random.default_rng(4)
    sizes = [int(size) for size in 2 ** rng.uniform(4, 12, 40)]
    layers: list[Layer] = [Linear(size, 256) for size in sizes] + [Norm("batch", (size, 4, 4)) for size in sizes]
    calls = [LayerCall(layer, Phase.UPDATE, 1) for layer in layers]
    # Two tensors each; a cache that helps small updates bends the line.
    moved = np.array([call.layer.work(Phase.UPDATE, 1).bytes for call in calls])
    times = 2 * 4e-6 + moved / np.where(moved < 1e5, 3e11, 9e10)
    shapes = [
        MeasuredShape(call.layer, Phase.UPDATE, 1, "fp32/sgd_momentum", time, 0.01, 9)
        for call, time in zip(calls, times.tolist(), strict=True)
    ]
    fit = chosen(fit_best(shapes, GPU))
    timer = CalibratedTimer(calibration(fit), Execution())
    unseen = LayerCall(Linear(1000, 256), Phase.UPDATE, 7)
    truth = 8e-6 + unseen.layer.work(Phase.UPDATE, 1).bytes / 9e10
    assert timer.price([unseen]).middle_s[0] == pytest.approx(truth, rel=0.1)


def test_a_step_a_tensor_and_a_byte_of_updates_are_told_apart() -> None:
    calls = generic_calls()["update", Phase.UPDATE]
    step_s, tensor_s, byte_s = 6e-5, 4e-6, 1 / 9e10
    table = features(calls, Execution())
    times = step_s + tensor_s * table[:, 0] + byte_s * table[:, 2]
    noise = np.exp(0.01 * np.random.default_rng(1).standard_normal(len(calls)))
    shapes = [
        MeasuredShape(call.layer, Phase.UPDATE, 1, "fp32/sgd_momentum", time, 0.01, 9)
        for call, time in zip(calls, (times * noise).tolist(), strict=True)
    ]
    fit = chosen(fit_best(shapes, GPU))
    values = {constant.quantity: constant.value for constant in fit.constants}
    assert values["call_s"] == pytest.approx(step_s, rel=0.1)
    assert values["launch_s"] == pytest.approx(tensor_s, rel=0.1)
    timer = CalibratedTimer(calibration(fit), Execution())
    layers: list[Layer] = [Linear(1024, 1024), *[Norm("batch", (256, 8, 8))] * 40, *[Linear(2048, 512)] * 20]
    whole = LayerCall(together(layers), Phase.UPDATE, 1)
    truth = step_s + tensor_s * 122 + byte_s * whole.layer.work(Phase.UPDATE, 1).bytes
    price = timer.price([whole])
    assert price.middle_s[0] == pytest.approx(truth, rel=0.08)
    assert price.methods == (Method.FITTED,)
    alone = timer.price([LayerCall(layer, Phase.UPDATE, 1) for layer in layers]).middle_s.sum()
    assert alone > price.middle_s[0] + 40 * step_s


def test_three_shapes_and_equal_shapes_still_give_a_price() -> None:
    three = fit_best(on_a_gpu([Linear(8 * 4**step, 512) for step in range(3)]), GPU)
    assert chosen(three).law == "additive"
    # The same product under two names, often: 20 measurements of one shape.
    alike = measured([Elementwise("relu", (channels, 7)) for channels in [8] * 20], np.full(20, 1e-5))
    assert chosen(fit_best(alike, GPU)).law == "additive"
    flat = measured(linears(30), np.full(30, 1e-5))
    assert chosen(fit_best(flat, GPU)).held_out_error < 0.01


def test_a_processor_is_read_from_the_environment_and_else_from_the_name() -> None:
    assert processor_of("x", {"multiprocessors": "132", "l2_bytes": "52428800"}) == Processor(132, 52428800)
    assert processor_of("Tesla V100-SXM2-16GB", {}) == Processor(80, 6 * 2**20)
    assert processor_of("NVIDIA H100 PCIe", {}).units == 114
    assert processor_of("a100_sxm", {}).units == 108
    assert processor_of("A CPU", {"threads": "64"}).units == 64
    assert processor_of("nobody knows", {"threads": "many"}).units == 80
