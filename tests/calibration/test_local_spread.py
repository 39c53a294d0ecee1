import numpy as np
import pytest

from calibration.local_spread import fit_local_spread, flat_spread, unseen_factors


def test_scores_are_alike_everywhere_once_they_are_divided_by_their_factor() -> None:
    rng = np.random.default_rng(0)
    log_seconds = rng.uniform(-12, -2, 2000)
    sd = np.where(log_seconds < -7, 0.5, 3.0)
    scores = sd * rng.normal(size=2000)
    scaled = scores / fit_local_spread(log_seconds, scores).factor(log_seconds)
    short, long = scaled[log_seconds < -9].std(), scaled[log_seconds > -5].std()
    assert short == pytest.approx(1.0, rel=0.2)
    assert long == pytest.approx(short, rel=0.2)


def test_few_scores_stay_near_their_common_spread() -> None:
    # Two of ten kernels missed by three sd: the last knot has 2 scores of 9 and five times the mean of (8 + 18) / 10.
    log_seconds = np.linspace(-9, 0, 10)
    scores = np.array([1.0] * 8 + [-3.0, 3.0])
    spread = fit_local_spread(log_seconds, scores)
    assert spread.factor(np.array([0.0]))[0] < 2.2
    assert spread.factor(np.array([-9.0]))[0] > 1.2


def test_beyond_the_calibrated_lengths_the_factor_stays_what_it_was_at_the_end() -> None:
    spread = fit_local_spread(np.linspace(-9, 0, 50), np.linspace(0.5, 3, 50))
    assert spread.factor(np.array([9.0])) == spread.factor(np.array([0.0]))


def test_one_length_or_no_error_gives_one_factor() -> None:
    equal = fit_local_spread(np.full(20, -5.0), np.full(20, 2.0))
    assert equal.factor(np.array([-9.0, -1.0])).tolist() == pytest.approx([2.0, 2.0])
    assert fit_local_spread(np.linspace(0, 1, 5), np.zeros(5)).factor(np.array([0.5]))[0] == 1.0
    assert flat_spread().factor(np.array([-20.0, 3.0])).tolist() == [1.0, 1.0]


def test_a_kernel_that_was_missed_does_not_widen_its_own_factor() -> None:
    log_seconds = np.linspace(-9, 0, 30)
    scores = np.where(np.arange(30) == 29, 4.0, 1.0)
    inside = fit_local_spread(log_seconds, scores).factor(log_seconds)
    unseen = unseen_factors(log_seconds, scores)
    assert inside[-1] > 1.2
    assert unseen[-1] == pytest.approx(1.0)
    assert unseen[0] == pytest.approx(inside[0], rel=0.3)
