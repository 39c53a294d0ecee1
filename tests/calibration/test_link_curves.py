"""Curves of time against size: what the readings do, and what the fit finds again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import PchipInterpolator
from sklearn.isotonic import isotonic_regression

from calibration.link_curves import affine_tail, combined, envelope, inside_readings, isotonic, pchip, read, settled
from calibration.link_pieces import alpha_beta, choose_pieces, labelled_pieces, relative_affine
from calibration.link_rows import Series
from calibration.link_values import AffinePiece, CurveKey, LinkCurve
from calibration.links import fit_curve
from oracle.estimate import Floats

SIZES: Floats = 64.0 * np.exp2(np.arange(25.0))
KEY = CurveKey("all_reduce", 8, 1, "float")
values = st.lists(st.integers(-5000, 5000).map(lambda number: number / 1000), min_size=3, max_size=12)


def curve(seconds: Floats, sizes: Floats = SIZES) -> LinkCurve:
    return fit_curve(Series(KEY, sizes, seconds, ("",) * len(sizes), None, None))[0]


@given(values)
def test_pooling_is_isotonic_regression(y: list[float]) -> None:
    assert isotonic(np.array(y)) == pytest.approx(isotonic_regression(y), abs=1e-12)


@given(values)
@settings(deadline=None)
def test_the_cubic_is_that_of_scipy(y: list[float]) -> None:
    x = np.cumsum(1 + np.arange(len(y)) % 3).astype(float)
    at = np.linspace(x[0], x[-1], 40)
    assert pchip(x, np.array(y), at) == pytest.approx(PchipInterpolator(x, y)(at), abs=1e-9)


def test_a_switch_of_algorithm_is_not_pooled_and_noise_is() -> None:
    # A fall of 0.1 is pooled, a fall of 1 is kept.
    assert settled(np.array([0.0, 1.0, 0.9, 2.0, 1.0])) == pytest.approx([0.0, 0.95, 0.95, 2.0, 1.0])


def test_relative_weights_find_both_constants_and_none_is_negative() -> None:
    assert relative_affine(SIZES, 1e-5 + 1e-9 * SIZES) == pytest.approx((1e-5, 1e-9))
    assert relative_affine(SIZES, np.full(25, 1e-5)) == pytest.approx((1e-5, 0.0), abs=1e-18)
    falling = relative_affine(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0]))
    assert min(falling) >= 0


def test_alpha_beta_of_an_affine_curve_is_the_curve_with_sharp_constants() -> None:
    piece = alpha_beta(SIZES, 1e-5 + 1e-9 * SIZES)
    assert (piece.alpha_s, piece.s_per_byte) == pytest.approx((1e-5, 1e-9))
    assert piece.alpha_log_sd == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_number_of_protocols_and_their_constants_are_found_without_noise(count: int) -> None:
    true = np.array([[1e-5, 1e-9], [5e-5, 1e-10], [3e-4, 1e-11]])[:count]
    found = choose_pieces(SIZES, envelope(true[:, 0], true[:, 1], SIZES))
    assert [(piece.alpha_s, piece.s_per_byte) for piece in found] == [
        pytest.approx(pair, rel=0.02) for pair in true.tolist()
    ]


def test_one_stalled_message_moves_no_protocol() -> None:
    seconds = 1e-5 + 1e-10 * SIZES
    seconds[12] *= 20
    (piece,) = choose_pieces(SIZES, seconds)
    assert (piece.alpha_s, piece.s_per_byte) == pytest.approx((1e-5, 1e-10), rel=0.03)


def test_labels_of_a_log_are_the_pieces() -> None:
    # LL up to 2 MiB although Simple would be faster from 100 kB on: only the log knows.
    low = SIZES <= 2**21
    seconds = np.where(low, 1e-5 + 1e-9 * SIZES, 1e-4 + 1e-10 * SIZES)
    labels = ["RING/LL" if small else "NVLS/SIMPLE" for small in low]
    first, second = labelled_pieces(SIZES, seconds, labels)
    assert [piece.label for piece in (first, second)] == ["RING/LL", "NVLS/SIMPLE"]
    assert (first.alpha_s, first.s_per_byte, second.s_per_byte) == pytest.approx((1e-5, 1e-9, 1e-10))


def test_a_measured_size_is_priced_as_it_was_measured() -> None:
    seconds = envelope(np.array([1e-5, 5e-5]), np.array([1e-9, 1e-10]), SIZES) * (1 + 0.05 * np.sin(SIZES))
    sparse = curve(seconds[::3], SIZES[::3])
    assert np.exp(read(sparse, SIZES[::3]).log_s) == pytest.approx(seconds[::3], rel=1e-9)


def test_the_price_lies_between_the_readings() -> None:
    readings = inside_readings(SIZES, 1e-5 + 1e-10 * SIZES, (np.array([1.1e-5]), np.array([1e-10])), SIZES[1:-1] * 1.3)
    price = combined(readings, smooth=False)
    assert (price >= readings.min(axis=0)).all()
    assert (price <= readings.max(axis=0)).all()


def test_beyond_the_largest_size_time_grows_with_the_bandwidth_that_was_reached() -> None:
    seconds = 1e-5 + 1e-10 * SIZES
    beyond = read(curve(seconds), np.array([32 * SIZES[-1]]))
    assert np.exp(beyond.log_s) == pytest.approx(1e-5 + 32e-10 * SIZES[-1], rel=0.01)
    assert beyond.beyond == pytest.approx(5.0)


def test_the_tail_is_never_more_than_twice_as_fast_as_the_end() -> None:
    # The last three times are equal, so the slope of the points is zero; half of the last time per byte stands.
    alpha, slope = affine_tail(np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 1.0]))
    assert (alpha, slope) == (0.5, 0.125)


def test_below_the_smallest_size_time_falls_no_further_than_alpha() -> None:
    below = read(curve(1e-5 + 1e-9 * SIZES), np.array([1.0]))
    assert np.exp(below.log_s) == pytest.approx(1e-5, rel=0.01)
    assert below.beyond == pytest.approx(6.0)


def test_times_never_fall_where_measured_times_rise() -> None:
    seconds = envelope(np.array([1e-5, 5e-5]), np.array([1e-9, 1e-10]), SIZES)
    at = np.geomspace(8, 2**34, 400)
    assert (np.diff(read(curve(seconds), at).log_s) >= -1e-9).all()


@pytest.mark.parametrize(("noise", "smooth"), [(0.2, True), (0.0, False)])
def test_dense_noisy_curves_are_smoothed_and_exact_ones_are_not(noise: float, smooth: bool) -> None:
    sizes = np.linspace(1e6, 1e9, 60)
    rng = np.random.default_rng(1)
    seconds = (1e-4 + 1e-10 * sizes) * (1 + 0.3 * np.sin(sizes / 1e8)) if not smooth else 1e-4 + 1e-10 * sizes
    assert curve(seconds * np.exp(noise * rng.standard_normal(60)), sizes).smooth is smooth


def test_a_piece_of_few_sizes_is_not_identified() -> None:
    assert len(choose_pieces(SIZES[:4], np.array([1e-5, 1.1e-5, 1.3e-5, 1.3e-5]))) == 1
    assert alpha_beta(SIZES[:2], np.array([1e-5, 1.1e-5])).alpha_log_sd is None


def test_a_piece_says_its_seconds() -> None:
    assert AffinePiece(1e-5, 1e-9).seconds(1e4) == pytest.approx(2e-5)
