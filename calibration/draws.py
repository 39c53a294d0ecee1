"""Repeatable standard normal draws, and how they become factors. NumPy only: used by the fits and by the timers.

Every random number of a prediction is a row of `DRAWS` values that depends on nothing but a text: what the number
belongs to. Equal texts give equal rows in every process, so the difference of a prediction with itself is exactly 0.

Rows are standardised (mean 0, variance 1) and factors have mean 1: 64 plain draws would move every interval by an
eighth of its width for no reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from oracle.estimate import DRAWS, Floats


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def standard_rows(text: str, rows: int) -> Floats:
    """Standard normal rows of mean 0 and variance 1, shape (rows, DRAWS), decided by the text alone."""
    return _standardised(np.random.default_rng(_number(text)).standard_normal((rows, DRAWS)))


def _standardised(values: Floats) -> Floats:
    values -= values.mean(axis=1, keepdims=True)
    values /= values.std(axis=1, keepdims=True)
    return values


def white_rows(text: str, rows: int) -> Floats:
    """As `standard_rows`, and uncorrelated with one another: their covariance is the identity."""
    values = standard_rows(text, rows)
    whitened: Floats = np.linalg.solve(np.linalg.cholesky(values @ values.T / DRAWS), values)
    return whitened


BANK_ROWS = 2048
"""Two texts share a row, and what they belong to is then held for correlated, once in so many pairs."""


@lru_cache(maxsize=1)
def _bank() -> Floats:
    return np.random.default_rng(_number("bank")).standard_normal((BANK_ROWS, DRAWS))


def bank_rows(texts: Iterable[str]) -> Floats:
    """A standard row of each of n texts, shape (n, DRAWS): a hundred times cheaper than a generator for each text."""
    return _standardised(_bank()[[_number(text) % BANK_ROWS for text in texts]])


MOST_DRAWN_SD = 1.0
"""Largest sd of ln seconds that draws of one price have. Factors of a larger one have their mean in a few wild draws,
so that nine of ten lie below the price itself; at 1 they reach from a sixth to twice the price, and that it may be
worse is said by calling the price an extrapolation."""


def unit_mean_factors(log_values: Floats) -> Floats:
    """Exponentials of the values, each row (last axis) divided by its mean: uncertainty does not move a price."""
    factors = np.exp(log_values)
    factors /= factors.mean(axis=-1, keepdims=True)
    return factors
