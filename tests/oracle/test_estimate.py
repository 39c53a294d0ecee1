"""Quantiles of draws."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.estimate import DRAWS, Estimate


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_are_those_of_numpy_to_the_last_digit(seed: int) -> None:
    draws = np.random.default_rng(seed).lognormal(sigma=2.0, size=DRAWS)
    estimate = Estimate(1.0, draws)
    for q in (0.0, 0.05, 0.1, 1 / 3, 0.5, 0.9, 0.95, 1.0):
        assert estimate.quantile(q) == np.quantile(draws, q)
    assert estimate.interval(0.9) == tuple(np.quantile(draws, [(1 - 0.9) / 2, (1 + 0.9) / 2]))


def test_the_interval_is_the_quantiles_beside_the_middle() -> None:
    # 0, 1, ... 63: a tenth of the way is 6.3, nine tenths are 56.7.
    lo, hi = Estimate(31.5, np.arange(float(DRAWS))).interval()
    assert [lo, hi] == pytest.approx([6.3, 56.7])


def test_there_is_no_quantile_beyond_all() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Estimate.exact(1.0).quantile(1.1)
