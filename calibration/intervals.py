"""Intervals of fitted constants that stay honest when the form of the model is only roughly right.

The usual covariance of least squares trusts that all residuals come from one distribution. Residuals of kernel times
do not: they are measurement noise of a few percent plus the misfit of shapes that the form does not know (tiles,
caches, another algorithm), and the misfit differs between small and large shapes. The sandwich estimator takes the
residuals as they are; its variant HC2 divides each square by one minus its leverage, which makes it unbiased where
they are alike after all (MacKinnon, White, J. Econometrics 29, 1985).

A constant often hangs on very few shapes, a launch on the two or three smallest. Its variance is then learnt from one
or two residuals, whatever the number of rows, and n - k degrees of freedom promise too much: on the simulated device
HC3 with n - k covers such constants in 65 to 75 % of the runs at nominal 80 %. Each constant gets the degrees of
freedom that its own variance estimate has (Bell, McCaffrey, Survey Methodology 28, 2002; recommended for small
samples by Imbens, Kolesár, Review of Economics and Statistics 98, 2016), which brings all of them to 77 to 87 %, with
residuals that are alike and, nearly, with ones that are not.

Constants are positive and span decades, so their intervals and draws are taken in ln(constant).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from calibration.draws import unit_mean_factors, white_rows
from oracle.constants import CONSTANT_LEVEL
from oracle.estimate import Floats


def t_quantile(degrees: Floats | float) -> Floats:
    """How many standard errors the 80 % interval reaches to each side.

    >>> t_quantile(np.array([1.0, 1000.0])).round(2).tolist()
    [3.08, 1.28]
    """
    quantile: Floats = stdtrit(degrees, (1 + CONSTANT_LEVEL) / 2)
    return quantile


def stretch(degrees: Floats | float) -> Floats:
    """By how much a standard deviation that was learnt from few values is too short for a normal interval."""
    wider: Floats = t_quantile(degrees) / t_quantile(1e9)
    return wider


@dataclass(frozen=True)
class Uncertainty:
    """Covariance of coefficients, shape (k, k), and the degrees of freedom behind each variance, shape (k,)."""

    covariance: Floats
    degrees: Floats

    def relative_to(self, coefficients: Floats) -> Uncertainty:
        """That of the coefficients' logarithms."""
        return Uncertainty(self.covariance / np.outer(coefficients, coefficients), self.degrees)

    @property
    def half_widths(self) -> Floats:
        """Half of each 80 % interval, shape (k,)."""
        half: Floats = t_quantile(self.degrees) * np.sqrt(np.diag(self.covariance))
        return half

    def draws(self, values: Floats, text: str) -> Floats:
        """Joint log-normal draws of positive values, for an uncertainty of logarithms.

        Args:
            values: the means of the draws, shape (k,).
            text: decides the draws.

        Returns:
            Shape (k, DRAWS), all positive; their quantiles are as wide as the intervals.
        """
        wider = stretch(self.degrees)
        scales, axes = np.linalg.eigh(self.covariance * np.outer(wider, wider))
        root = axes * np.sqrt(np.maximum(scales, 0))
        return values[:, None] * unit_mean_factors(root @ white_rows(text, len(values)))


def sandwich(rows: Floats, residuals: Floats) -> Uncertainty | None:
    """HC2 covariance of least-squares coefficients with Bell and McCaffrey's degrees of freedom.

    Args:
        rows: weighted design matrix, shape (n, k).
        residuals: weighted residuals, shape (n,).

    Returns:
        None where the columns cannot be told apart, or one row alone decides a coefficient.
    """
    lengths = np.linalg.norm(rows, axis=0)
    unit = rows / lengths
    gram = unit.T @ unit
    if np.linalg.eigvalsh(gram)[0] < 1e-9:
        return None
    pull = np.linalg.solve(gram, unit.T)  # d coefficient / d row, shape (k, n)
    kept = np.eye(len(rows)) - unit @ pull
    own_share = np.diag(kept)  # one minus the leverage
    if own_share.min() < 1e-9:
        return None
    squares = pull**2 / own_share
    influence = pull * (residuals / np.sqrt(own_share))
    # Under equal variances the estimate is a quadratic form of trace sum(pull^2); Satterthwaite matches its variance.
    degrees = (pull**2).sum(axis=1) ** 2 / np.einsum("ki,ij,kj->k", squares, kept**2, squares)
    return Uncertainty(influence @ influence.T / np.outer(lengths, lengths), degrees)
