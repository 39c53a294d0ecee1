"""How much wider or narrower the errors of a kernel family are for short and for long kernels. NumPy only.

The sd of a Gaussian process knows how far a kernel is from those that were measured, and takes the noise to be the
same everywhere. It is not: launch-bound kernels repeat to a percent, kernels at the ridge jump with the algorithm that
the library chooses, and the longest matrix products of small devices differ by a factor of two for no visible reason.
So the squared z scores of left-out kernels are averaged around five quantiles of ln seconds, each with five kernels'
worth of the overall mean, and the sd is multiplied by the root, interpolated between them. Conformal quantiles are
taken of the scores after that, each kernel divided by a factor that the others gave (locally weighted conformal
inference: Lei et al., JASA 113, 2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oracle.estimate import Floats

_KNOTS = 5
_COMMON_KERNELS = 5.0
"""Kernels' worth of the overall mean that every knot has."""

_FOLDS = 10
_LARGEST_SHARE = 25.0
"""Squared scores count up to so many times their mean: one wild kernel must not widen a whole range."""


@dataclass(frozen=True, eq=False)
class LocalSpread:
    """Factors of the sd by predicted ln seconds.

    Args:
        at: ln seconds, rising, shape (k,); log_factor: ln of the factor there, shape (k,); constant beyond the ends.
    """

    at: Floats
    log_factor: Floats

    def factor(self, log_seconds: Floats) -> Floats:
        """By what to multiply the sd of kernels with these predicted ln seconds, shape (n,).

        >>> LocalSpread(np.array([0.0, 1.0]), np.array([0.0, np.log(2)])).factor(np.array([-1.0, 1.0])).tolist()
        [1.0, 2.0]
        """
        found: Floats = np.exp(np.interp(log_seconds, self.at, self.log_factor))
        return found


def flat_spread() -> LocalSpread:
    """The sd as it is, for kernels of any length."""
    return LocalSpread(np.zeros(1), np.zeros(1))


def fit_local_spread(log_seconds: Floats, scores: Floats) -> LocalSpread:
    """Fit the factors to kernels that the fit has not seen.

    Args:
        log_seconds: predicted, shape (n,).
        scores: ln(measured / predicted) / sd, shape (n,), of either sign.
    """
    squares = np.asarray(scores, dtype=np.float64) ** 2
    mean = float(squares.mean())
    if not mean > 0:
        return flat_spread()
    squares = np.minimum(squares, _LARGEST_SHARE * mean)
    at = np.unique(np.quantile(log_seconds, np.linspace(0, 1, _KNOTS)))
    weights = np.stack([np.interp(log_seconds, at, row) for row in np.eye(len(at))])
    local = (weights @ squares + _COMMON_KERNELS * mean) / (weights.sum(axis=1) + _COMMON_KERNELS)
    return LocalSpread(at, np.log(local) / 2)


def unseen_factors(log_seconds: Floats, scores: Floats) -> Floats:
    """The factor of each kernel from the others, shape (n,): its own score must not excuse itself.

    Args:
        log_seconds: predicted, shape (n,).
        scores: ln(measured / predicted) / sd, shape (n,).
    """
    fold = np.random.default_rng(0).permutation(len(scores)) % _FOLDS
    found = np.ones(len(scores))
    for left in range(min(_FOLDS, len(scores))):
        rest = fold != left
        found[~rest] = fit_local_spread(log_seconds[rest], scores[rest]).factor(log_seconds[~rest])
    return found
