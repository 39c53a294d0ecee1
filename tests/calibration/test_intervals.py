from __future__ import annotations

import numpy as np
import pytest

from calibration.draws import bank_rows, standard_rows, unit_mean_factors, white_rows
from calibration.intervals import Uncertainty, sandwich, stretch, t_quantile
from oracle.estimate import DRAWS, Floats


def noisy_line(seed: int, spread: Floats) -> tuple[Floats, Floats, Floats]:
    """Rows, residuals and coefficients of a least-squares line through y = 1 + 2 x with noise."""
    rows = np.column_stack([np.ones(len(spread)), np.linspace(0, 1, len(spread))])
    target = rows @ np.array([1.0, 2.0]) + spread * np.random.default_rng(seed).standard_normal(len(spread))
    found = np.linalg.lstsq(rows, target)[0]
    return rows, target - rows @ found, found


@pytest.mark.parametrize(
    ("spread", "most"),
    [(np.full(10, 0.1), 0.85), (np.linspace(0.02, 0.3, 10), 1.0)],
    ids=["even", "uneven"],
)
def test_intervals_cover_whether_noise_is_even_or_not(spread: Floats, most: float) -> None:
    hits = []
    for seed in range(600):
        rows, residuals, found = noisy_line(seed, spread)
        known = sandwich(rows, residuals)
        assert known is not None
        hits.append(np.abs(found - [1.0, 2.0]) <= known.half_widths)
    # 600 runs at 80 %: a standard error of 1.6 points.
    coverage = np.mean(hits, axis=0)
    assert (coverage >= 0.75).all()
    assert (coverage <= most).all()


def test_covariance_is_unbiased_where_noise_is_even() -> None:
    spread = np.full(12, 0.1)
    estimates = [sandwich(*noisy_line(seed, spread)[:2]) for seed in range(2000)]
    rows = noisy_line(0, spread)[0]
    truth = 0.01 * np.linalg.inv(rows.T @ rows)
    mean = np.mean([known.covariance for known in estimates if known is not None], axis=0)
    assert mean == pytest.approx(truth, rel=0.08)


def test_a_constant_that_hangs_on_one_row_has_one_degree_of_freedom() -> None:
    # Nine rows far out and one near zero: the intercept is what the near one says.
    rows = np.column_stack([np.ones(10), [0.0, *np.linspace(90, 110, 9)]])
    known = sandwich(rows, np.full(10, 0.1))
    assert known is not None
    assert known.degrees[0] == pytest.approx(1.0, abs=0.1)


def test_columns_that_cannot_be_told_apart_have_no_uncertainty() -> None:
    column = np.linspace(1, 2, 6)
    assert sandwich(np.column_stack([column, 3 * column]), np.full(6, 0.1)) is None


def test_a_row_that_alone_decides_a_coefficient_has_no_uncertainty() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    assert sandwich(rows, np.array([0.0, 0.1, -0.1])) is None


def test_draws_are_positive_joint_and_as_wide_as_their_interval() -> None:
    covariance = np.array([[0.04, -0.018], [-0.018, 0.01]])
    known = Uncertainty(covariance, np.array([4.0, 30.0]))
    values = np.array([3.0, 5.0])
    draws = known.draws(values, "some constants")
    assert draws.shape == (2, DRAWS)
    assert (draws > 0).all()
    assert draws.mean(axis=1) == pytest.approx(values)
    logs = np.log(draws)
    assert logs.std(axis=1) == pytest.approx(np.sqrt(np.diag(covariance)) * stretch(known.degrees))
    assert np.corrcoef(logs)[0, 1] == pytest.approx(-0.9)


def test_few_degrees_of_freedom_widen() -> None:
    assert t_quantile(2.0) > t_quantile(10.0) > t_quantile(1e6)
    assert stretch(1e6) == pytest.approx(1.0, abs=1e-3)


def test_rows_are_standard_and_decided_by_their_text() -> None:
    rows = standard_rows("a text", 3)
    assert rows.mean(axis=1) == pytest.approx(0, abs=1e-12)
    assert rows.std(axis=1) == pytest.approx(1)
    assert (rows == standard_rows("a text", 3)).all()
    assert not (rows == standard_rows("another text", 3)).any()


def test_white_rows_are_uncorrelated() -> None:
    rows = white_rows("a text", 3)
    assert rows @ rows.T / DRAWS == pytest.approx(np.eye(3), abs=1e-9)


def test_the_bank_has_a_row_for_every_text() -> None:
    texts = [str(number) for number in range(100)]
    rows = bank_rows(texts)
    assert rows.shape == (100, DRAWS)
    assert rows.mean(axis=1) == pytest.approx(0, abs=1e-12)
    assert rows.std(axis=1) == pytest.approx(1)
    assert (rows[7:9] == bank_rows(texts[7:9])).all()
    assert len(np.unique(rows, axis=0)) > 90


def test_factors_widen_a_price_and_do_not_move_it() -> None:
    factors = unit_mean_factors(0.5 * standard_rows("a text", 2))
    assert factors.mean(axis=1) == pytest.approx(1)
    assert (factors > 0).all()
