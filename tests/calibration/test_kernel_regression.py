from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingRegressor

from calibration.anchors import session_factor
from calibration.device_prior import learn_prior
from calibration.gaussian_process import GaussianProcess
from calibration.kernel_model import KernelModel, conformal_quantile
from calibration.kernel_regression import RegressionReport, fit_kernel_model, mean_error
from calibration.medoids import choose_medoids
from calibration.quantities import Processor, Quantities, matrix_products, row_operations
from calibration.residual_fit import fit_trees
from calibration.roofline import CONSTANTS, Roofline
from calibration.roofline_fit import fit_plain, fit_roofline
from calibration.shared_residual import SharedResidual
from calibration.trees import Trees
from oracle.errors import BadInput, OutOfRange
from oracle.estimate import DRAWS, Floats

DEVICE = Processor(80, 6 * 2**20)
TRUTH = Roofline(launch_s=8e-6, s_per_flop=1 / 12e12, s_per_byte=1 / 800e9, wave_exponent=0.6)


def products(count: int, seed: int, largest: float = 12.0) -> Quantities:
    rng = np.random.default_rng(seed)
    axes = {name: np.floor(2 ** rng.uniform(4, largest, count)) for name in ("m", "n", "k")}
    return matrix_products({"batch": 1.0, **axes}, 4, DEVICE)


def measured(kernels: Quantities, seed: int, sd: float = 0.05) -> Floats:
    """A simulated device: known constants, a penalty of 30 % for odd n, and noise."""
    odd = kernels.classes[:, 0] == 0
    noise = np.random.default_rng(seed).normal(0, sd, len(kernels))
    return TRUTH.seconds(kernels) * np.where(odd, 1.3, 1.0) * np.exp(noise)


@functools.cache
def fitted() -> tuple[Quantities, Floats, KernelModel, RegressionReport]:
    kernels = products(120, 0)
    seconds = measured(kernels, 1)
    return (kernels, seconds, *fit_kernel_model(kernels, seconds))


def test_constants_of_a_simulated_device_are_recovered_under_noise() -> None:
    kernels = products(200, 3)
    noise = np.random.default_rng(4).normal(0, 0.05, len(kernels))
    fit = fit_roofline(kernels, TRUTH.seconds(kernels) * np.exp(noise))
    assert fit.fitted == ("launch_s", "s_per_flop", "s_per_byte", "wave_exponent")
    for name, truth, found in zip(CONSTANTS[:3], TRUTH.values, fit.roofline.values, strict=False):
        assert found == pytest.approx(truth, rel=0.05), name
    assert fit.roofline.wave_exponent == pytest.approx(TRUTH.wave_exponent, abs=0.1)
    assert not fit.not_identified
    assert np.allclose(np.diag(fit.correlation), 1)


def test_what_a_step_of_an_optimizer_costs_is_told_from_its_tensors() -> None:
    rng = np.random.default_rng(8)
    tensors, items = np.round(2 ** rng.uniform(0, 9, 60)), np.round(2 ** rng.uniform(5, 22, 60))
    kernels = replace(row_operations(tensors, items, 20.0, DEVICE), launches=tensors)
    truth = Roofline(launch_s=3e-6, s_per_flop=0.0, s_per_byte=1 / 900e9, call_s=9e-5)
    fit = fit_roofline(kernels, truth.seconds(kernels) * np.exp(rng.normal(0, 0.02, 60)))
    assert fit.fitted == ("launch_s", "s_per_byte", "call_s")
    assert fit.roofline.values == pytest.approx(truth.values, rel=0.05)
    one = replace(kernels, launches=np.ones(60))
    assert fit_roofline(one, truth.seconds(one)).roofline.call_s == 0


@pytest.mark.parametrize("rate", [1e-12, 1e130])
def test_work_whose_cube_is_no_float_has_its_time(rate: float) -> None:
    axes = {name: np.array([size]) for name, size in (("batch", 1.0), ("m", 1e18), ("n", 1e50), ("k", 1e50))}
    kernel = matrix_products(axes, 4, DEVICE)
    bound = Roofline(launch_s=1e-6, s_per_flop=rate, s_per_byte=0.0).seconds(kernel)
    assert bound == pytest.approx(rate * kernel.flop)
    even = Roofline(launch_s=1e-6, s_per_flop=rate, s_per_byte=float(rate * kernel.flop[0] / kernel.bytes[0]))
    assert even.seconds(kernel) == pytest.approx(2 ** (1 / 3) * rate * kernel.flop)


def test_a_kernel_without_work_takes_its_launch() -> None:
    nothing = replace(products(3, 1), flop=np.zeros(3), bytes=np.zeros(3))
    assert TRUTH.seconds(nothing).tolist() == [TRUTH.launch_s] * 3


def test_a_wild_kernel_in_ten_does_not_move_the_constants() -> None:
    kernels = products(200, 5)
    seconds = TRUTH.seconds(kernels)
    seconds[::10] *= 4
    found = fit_roofline(kernels, seconds).roofline
    assert found.s_per_flop == pytest.approx(TRUTH.s_per_flop, rel=0.05)


def test_what_the_kernels_do_not_show_is_named() -> None:
    kernels = products(40, 6, largest=5.0)  # all far below the launch time
    assert "s_per_flop" in fit_roofline(kernels, measured(kernels, 7)).not_identified


def test_the_residual_finds_what_the_constants_cannot_say() -> None:
    _, _, model, report = fitted()
    test = products(400, 8)
    seconds = measured(test, 9)
    error = mean_error(np.log(model.predict(test).median_s), seconds)
    plain = mean_error(np.log(model.branches[0].roofline.seconds(test)), seconds)
    assert report.error < report.roofline_error
    assert error < 0.8 * plain


def test_noise_alone_leaves_the_roofline_unharmed() -> None:
    kernels = products(60, 10)
    seconds = TRUTH.seconds(kernels) * np.exp(np.random.default_rng(11).normal(0, 0.1, 60))
    model, _ = fit_kernel_model(kernels, seconds)
    test = products(400, 12)
    truth = TRUTH.seconds(test)
    assert mean_error(np.log(model.predict(test).median_s), truth) < 0.07


def test_intervals_hold_what_they_promise() -> None:
    _, _, model, _ = fitted()
    test = products(1000, 13)
    seconds = measured(test, 14)
    for level, least in ((0.8, 0.7), (0.9, 0.82)):
        low, high = model.predict(test).interval(level)
        assert np.mean((low <= seconds) & (seconds <= high)) > least


def test_draws_scatter_around_the_mean_and_depend_on_the_shape_alone() -> None:
    _, _, model, _ = fitted()
    test = products(50, 15)
    own = np.random.default_rng(0).standard_normal((50, DRAWS))
    _, draws = model.predict_with_draws(test, own)
    assert draws.shape == (50, DRAWS)
    assert np.allclose(draws.mean(axis=1), model.predict(test).mean_s)
    some = np.arange(20, 30)
    assert np.allclose(model.predict_with_draws(test.take(some), own[some])[1], draws[some])


def test_far_outside_the_prediction_stays_a_time_and_is_flagged() -> None:
    _, _, model, _ = fitted()
    sizes = 2.0 ** np.arange(14, 24)
    far = matrix_products({"batch": 1.0, "m": sizes, "n": sizes, "k": sizes}, 4, DEVICE)
    prediction = model.predict(far)
    ratio = prediction.median_s / TRUTH.seconds(far)
    assert prediction.extrapolated.all()
    assert (np.diff(prediction.median_s) > 0).all()
    assert ((ratio > 0.5) & (ratio < 2)).all()
    tiny = matrix_products({"batch": 1.0, "m": np.array([1.0]), "n": 1, "k": 1}, 4, DEVICE)
    assert 0.5 < model.predict(tiny).median_s[0] / TRUTH.seconds(tiny)[0] < 2


def test_inside_few_are_flagged_and_an_unseen_alignment_is() -> None:
    kernels, _, _, _ = fitted()
    even = kernels.take(np.flatnonzero(kernels.classes[:, 0] > 0))
    model, _ = fit_kernel_model(even, measured(even, 20))
    assert np.mean(model.predict(even).extrapolated) <= 0.05
    odd = kernels.take(np.flatnonzero(kernels.classes[:, 0] == 0))
    assert model.predict(odd).extrapolated.all()


def test_a_stored_model_predicts_the_same() -> None:
    _, _, model, _ = fitted()
    test = products(300, 16)
    arrays = model.to_arrays(test.take(slice(5)))
    again = KernelModel.from_arrays(arrays)
    assert np.abs(np.log(again.predict(test).median_s / model.predict(test).median_s)).max() <= 1e-9
    assert np.array_equal(again.predict(test).extrapolated, model.predict(test).extrapolated)
    assert np.ptp(model.local_spread.log_factor) > 0.01
    assert again.predict(test).interval(0.8)[1] == pytest.approx(model.predict(test).interval(0.8)[1], rel=1e-9)
    assert sum(array.nbytes for array in arrays.values()) <= 200_000
    assert all(array.dtype.kind in "fiU" for array in arrays.values())


def test_a_changed_model_is_refused_on_loading() -> None:
    _, _, model, _ = fitted()
    arrays = model.to_arrays(products(5, 17))
    changed = arrays | {"branch0.numbers": arrays["branch0.numbers"] * 0.9999}
    with pytest.raises(BadInput, match="canary"):
        KernelModel.from_arrays(changed)


def test_the_first_answer_of_a_process_is_that_of_all_others() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(150, 4))
    ones = np.ones(4)
    # Hardly any noise: the sd is a small difference of large numbers, which an inverse of the covariance would lose.
    process = GaussianProcess(
        inputs, np.sin(inputs[:, 0]), 0.0, 0 * ones, ones, -5 * ones, 5 * ones, 3 * ones, 1.0, 1e-6
    )
    test = np.concatenate([inputs[:20] + 1e-3, rng.normal(size=(20, 4))])
    first, later = process.predict_with_draws(test), process.predict_with_draws(test)
    assert later[0] == pytest.approx(first[0], abs=1e-9)
    assert later[1] == pytest.approx(first[1], rel=1e-6)
    assert later[2] == pytest.approx(first[2], abs=1e-6)
    assert first[0][:20] == pytest.approx(np.sin(test[:20, 0]), abs=0.02)


def test_trees_as_arrays_fit_a_step() -> None:
    inputs = np.arange(60.0)[:, None]
    trees = fit_trees(inputs, np.where(inputs[:, 0] < 30, -0.2, 0.4))
    assert trees.predict(np.array([[3.0], [55.0]])) == pytest.approx([-0.2, 0.4], abs=0.01)


def test_trees_take_the_leaf_that_a_walk_from_the_root_finds() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(300, 5)).astype(np.float32).astype(np.float64)
    model = GradientBoostingRegressor(n_estimators=30, max_leaf_nodes=8, max_depth=None, random_state=0)
    model.fit(inputs, inputs[:, 0] * np.sin(3 * inputs[:, 1]) + (inputs[:, 2] > 0.3))
    grown = [estimator.tree_ for estimator in model.estimators_[:, 0]]
    slots = 15
    nodes, cut = np.zeros((3, len(grown), slots), dtype=np.int16), np.zeros((len(grown), slots), dtype=np.float32)
    nodes[1:] = np.arange(slots)
    for row, tree in enumerate(grown):
        for slot in range(tree.node_count):
            if tree.children_left[slot] < 0:
                cut[row, slot] = 0.1 * tree.value[slot, 0, 0]
            else:
                children = tree.children_left[slot], tree.children_right[slot]
                nodes[:, row, slot] = tree.feature[slot], *children
                cut[row, slot] = tree.threshold[slot]
    base = float(model.init_.constant_[0, 0])
    test = rng.normal(size=(700, 5))
    # What trees looked like in stores so far; single leaves and padded slots among them.
    trees = Trees.from_arrays({"nodes": nodes, "cut": cut, "numbers": np.array([8.0, base])})
    assert trees.predict(test) == pytest.approx(model.predict(test.astype(np.float32)), abs=1e-5)
    assert np.array_equal(Trees.from_arrays(trees.to_arrays()).predict(test), trees.predict(test))


def test_a_tree_of_one_leaf_is_a_number() -> None:
    nodes = np.array([[[0, 0]], [[0, 1]], [[0, 1]]], dtype=np.int16)
    cut = np.array([[0.5, 0.0]], dtype=np.float32)
    trees = Trees.from_arrays({"nodes": nodes, "cut": cut, "numbers": np.array([0.0, 2.0])})
    assert trees.predict(np.zeros((3, 1))).tolist() == [2.5] * 3
    assert trees.predict(np.zeros((0, 1))).shape == (0,)


def test_trees_of_more_leaves_than_bits_are_refused() -> None:
    # A chain: every inner node has a leaf to its left and the next inner node to its right.
    slots = np.arange(19, dtype=np.int16)
    left, right = slots.copy(), slots.copy()
    left[0:17:2], right[0:17:2] = slots[1:18:2], slots[2:19:2]
    nodes = np.stack([np.zeros_like(slots), left, right])[:, None]
    with pytest.raises(BadInput, match="10 leaves"):
        Trees.from_arrays({"nodes": nodes, "cut": np.zeros((1, 19), np.float32), "numbers": np.array([9.0, 0.0])})


def test_other_quantities_are_refused() -> None:
    _, _, model, _ = fitted()
    with pytest.raises(BadInput, match="other quantities"):
        model.predict(row_operations(np.array([4.0]), np.array([8.0]), 8, DEVICE))


@pytest.mark.parametrize("bad", [0.0, -1e-3, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused_with_its_row(bad: float) -> None:
    kernels = products(20, 18)
    seconds = measured(kernels, 18)
    seconds[7] = bad
    with pytest.raises(BadInput, match=r"1 of 20 .* row 7"):
        fit_kernel_model(kernels, seconds)


def test_measurements_of_one_shape_are_refused() -> None:
    with pytest.raises(BadInput, match="of one shape"):
        fit_kernel_model(products(1, 0).take(np.zeros(20, dtype=np.intp)), np.full(20, 1e-3))


def test_times_without_their_kernels_are_refused() -> None:
    with pytest.raises(BadInput, match="20 kernels have 3 times"):
        fit_kernel_model(products(20, 0), np.ones(3))


@pytest.mark.parametrize("groups", [[], ["a", "b"], ["a"] * 21])
def test_groups_of_other_kernels_are_refused(groups: list[str]) -> None:
    kernels = products(20, 0)
    with pytest.raises(BadInput, match=f"20 kernels have {len(groups)} groups"):
        fit_kernel_model(kernels, measured(kernels, 0), groups)


def test_a_prior_over_other_columns_is_refused() -> None:
    kernels = products(20, 0)
    wider = np.random.default_rng(0).normal(size=(40, 1 + kernels.columns.shape[1]))
    prior = SharedResidual(fit_trees(wider, wider[:, -1]))
    with pytest.raises(BadInput, match=r"trees over .* columns cannot be asked"):
        fit_kernel_model(kernels, measured(kernels, 0), prior=prior)


def test_three_shapes_give_constants_a_note_and_a_wide_interval() -> None:
    kernels = row_operations(np.array([64.0, 1024.0, 8192.0]), np.full(3, 1024.0), 8, DEVICE)
    model, report = fit_kernel_model(kernels, 5e-6 + kernels.bytes / 800e9)
    assert "constants only" in report.notes[0]
    low, high = model.predict(kernels).interval(0.8)
    assert (high / low > 2).all()
    assert model.predict(kernels).median_s == pytest.approx(5e-6 + kernels.bytes / 800e9, rel=0.15)


def test_contradicting_repeats_are_said_and_their_median_counts() -> None:
    kernels = products(30, 19)
    seconds = measured(kernels, 19)
    rows = np.concatenate([np.arange(30), [4, 4]])
    times = np.concatenate([seconds, [seconds[4] * 3, seconds[4] * 1.01]])
    model, report = fit_kernel_model(kernels.take(rows), times)
    clean, _ = fit_kernel_model(kernels, np.where(np.arange(30) == 4, seconds * 1.01, seconds))
    assert "1 of 30 shapes" in report.notes[0]
    assert np.allclose(model.predict(kernels).median_s, clean.predict(kernels).median_s)


def test_equal_times_are_a_launch_time_and_a_note() -> None:
    kernels = products(20, 21)
    model, report = fit_kernel_model(kernels, np.full(20, 1e-3))
    assert any("all times are equal" in note for note in report.notes)
    assert model.predict(kernels).median_s == pytest.approx(np.full(20, 1e-3), rel=0.1)


def test_a_prior_from_a_sibling_helps_a_device_with_few_kernels() -> None:
    def device(kernels: Quantities, speed: float, seed: int) -> Floats:
        return measured(kernels, seed, sd=0.02) / speed

    sources = [(products(200, seed), device(products(200, seed), 1 + seed / 10, seed)) for seed in (30, 31)]
    kernels, test = products(25, 32), products(400, 33)
    truth = device(test, 2.5, 34)
    alone, _ = fit_kernel_model(kernels, device(kernels, 2.5, 35))
    helped, report = fit_kernel_model(kernels, device(kernels, 2.5, 35), prior=learn_prior(sources))
    assert report.prior_share > 0.5
    errors = [mean_error(np.log(model.predict(test).median_s), truth) for model in (alone, helped)]
    assert errors[1] < 0.9 * errors[0]
    arrays = helped.to_arrays(test.take(slice(5)))
    again = KernelModel.from_arrays(arrays)
    assert len(again.branches) == 2
    inputs = [name for name in arrays if name.endswith("process.inputs")]
    assert inputs == ["branch0.process.inputs", "branch1.prior.process.inputs"]
    assert np.array_equal(again.predict(test).median_s, helped.predict(test).median_s)
    assert sum(array.nbytes for array in arrays.values()) <= 200_000


def test_a_prior_that_misleads_gets_little_of_the_price() -> None:
    # In the sources kernels with an odd n are twice as fast, here they are 30 % slower.
    tables = [products(200, seed) for seed in (36, 37)]
    sources = [(each, TRUTH.seconds(each) * np.where(each.classes[:, 0] == 0, 0.5, 1.0)) for each in tables]
    kernels = products(25, 38)
    _, report = fit_kernel_model(kernels, measured(kernels, 39), prior=learn_prior(sources))
    assert 0 < report.prior_share < 0.2
    _, alone = fit_kernel_model(kernels, measured(kernels, 39))
    assert report.own_error == alone.error


def test_one_layer_at_many_numbers_of_samples_cannot_be_left_out_and_is_fitted_all_the_same() -> None:
    kernels = products(20, 40)
    model, report = fit_kernel_model(kernels, measured(kernels, 41), groups=["the layer"] * 20)
    low, high = model.predict(kernels).interval(0.8)
    # Nothing could be tested, so the assumed sd counts: exp(2 * 1.645 * 0.3) = 2.68 from end to end.
    assert high / low == pytest.approx(np.full(20, 2.683), rel=0.01)
    assert report.process_share == 0.0


def test_a_prior_knows_the_shapes_that_its_sources_have_measured() -> None:
    # Every shape deviates by itself, by the same on both sources: nothing that trees could see in its axes.
    tables = [products(150, 50), products(150, 50)]
    own = np.random.default_rng(0).normal(0, 0.3, 150)
    prior = learn_prior(
        [(each, speed * TRUTH.seconds(each) * np.exp(own)) for each, speed in zip(tables, (1, 3), strict=True)]
    )
    assert prior.process is not None

    def missed(logs: Floats) -> float:
        return float(np.std(logs - own))

    columns = tables[0].columns
    assert missed(prior.predict(columns)) < missed(prior.trees.predict(columns))


def test_a_prior_of_thousands_of_kernels_is_trees_alone() -> None:
    # 2 x 900 kernels: half of 350 / 1800 is less than a tenth.
    tables = [products(900, seed) for seed in (51, 52)]
    prior = learn_prior([(each, TRUTH.seconds(each)) for each in tables])
    assert prior.process is None
    assert np.array_equal(prior.predict(tables[0].columns), prior.trees.predict(tables[0].columns))


def test_a_prior_that_was_stored_as_trees_alone_is_read() -> None:
    table = products(100, 53)
    prior = learn_prior([(table, measured(table, 54))])
    old = SharedResidual.from_arrays(prior.trees.to_arrays())
    assert np.allclose(old.predict(table.columns), prior.trees.predict(table.columns), rtol=0, atol=1e-6)


def test_a_prior_needs_another_device() -> None:
    with pytest.raises(BadInput, match="other device"):
        learn_prior([])


def test_anchors_find_a_slower_session_and_rows_of_another_device() -> None:
    _, _, model, _ = fitted()
    anchors = products(9, 40)
    same = session_factor(model, anchors, measured(anchors, 41) * 1.2)
    assert same.factor == pytest.approx(1.2, rel=0.1)
    assert same.drifted
    assert not same.foreign
    other = Roofline(launch_s=1e-4, s_per_flop=1 / 2e12, s_per_byte=1 / 100e9).seconds(anchors)
    assert session_factor(model, anchors, other).foreign
    with pytest.raises(BadInput, match="three anchors"):
        session_factor(model, anchors.take(slice(2)), other[:2])


def test_medoids_hold_both_ends_and_no_shape_twice() -> None:
    kernels = products(500, 50)
    rows = choose_medoids(kernels.dims, kernels.bytes, 40)
    assert len(set(rows.tolist())) == 40
    assert {int(kernels.bytes.argmin()), int(kernels.bytes.argmax())} <= set(rows.tolist())
    assert np.array_equal(rows, choose_medoids(kernels.dims, kernels.bytes, 40))
    with pytest.raises(OutOfRange, match="501"):
        choose_medoids(kernels.dims, kernels.bytes, 501)


def test_medoids_hold_more_of_the_long_kernels() -> None:
    # The same points with their sizes turned round: the longer half has more of the medoids both times.
    points = np.random.default_rng(0).uniform(0, 10, (600, 2))
    for size in (points[:, 0], 10 - points[:, 0]):
        chosen = choose_medoids(points, np.exp(size), 60)
        assert (size[chosen] > 5).sum() > 33


def test_medoids_lie_closer_to_what_is_asked_than_random_shapes() -> None:
    points = np.random.default_rng(0).normal(size=(600, 3))
    rows = choose_medoids(points, np.exp(points[:, 0]), 30)
    distances = [
        np.min(np.linalg.norm(points[:, None] - points[chosen], axis=2), axis=1).mean()
        for chosen in (rows, np.arange(30))
    ]
    assert distances[0] < distances[1]


def test_the_plain_fit_is_three_constants() -> None:
    kernels = products(50, 60)
    assert fit_plain(kernels, 1e-5 + 1e-12 * kernels.flop).coefficients == pytest.approx((1e-5, 1e-12, 0.0), abs=1e-18)


def test_the_conformal_quantile_of_too_few_is_the_largest() -> None:
    assert conformal_quantile(np.array([1.0, 2.0, 5.0]), 0.9) == 5.0


def test_a_stored_model_is_priced_without_the_libraries_that_fit_it() -> None:
    code = (
        "import sys, calibration.kernel_model, calibration.call_quantities, calibration.anchors, calibration.medoids; "
        "print([name for name in ('scipy', 'sklearn') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_price_lies_inside_its_own_draws_however_little_is_known() -> None:
    # Times that have nothing to do with the shapes: the left-out errors span decades.
    kernels = products(40, 50)
    model, _ = fit_kernel_model(kernels, np.exp(np.random.default_rng(51).normal(-7, 4, 40)))
    prediction, draws = model.predict_with_draws(products(60, 52), np.random.default_rng(53).normal(size=(60, DRAWS)))
    low, high = np.quantile(draws, [0.1, 0.9], axis=1)
    assert (low < prediction.mean_s).all()
    assert (prediction.mean_s < high).all()
