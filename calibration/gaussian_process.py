"""A fitted Gaussian process as plain arrays, evaluated by NumPy alone. The fit lives in `calibration.residual_fit`.

Matern-5/2 with one length per input and no linear kernel; inputs are *clamped* a quarter of a standard deviation
beyond what was calibrated. Without the clamp and with a linear kernel such models returned 1e29 seconds outside their
range; with it the residual stays what it was at the border, and the roofline alone extrapolates.

Draws are functions, not numbers (pathwise conditioning, Wilson et al., ICML 2020): a prior sample from random Fourier
features, corrected by the data. The draws of a shape are then the same in whatever batch and process it is priced,
shapes that resemble one another share their error, and nothing needs the joint covariance of a whole question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from oracle.estimate import DRAWS, Floats

_FEATURES = 128
_JITTER = 1e-6
_SMALL = 32
_MOST_ROWS = 512
"""Rows of noise that are drawn; a larger family uses them again."""


def matern(left: Floats, right: Floats, variance: float) -> Floats:
    """Matern-5/2 between inputs that are already divided by their lengths: (n, d) and (m, d) give (n, m)."""
    squares = (left * left).sum(axis=1)[:, None] + (right * right).sum(axis=1) - 2 * left @ right.T
    distance = np.sqrt(np.maximum(squares, 0.0, out=squares), out=squares)
    distance *= 5**0.5
    found = distance * distance
    found /= 3
    found += distance
    found += 1
    found *= np.exp(np.negative(distance, out=distance), out=distance)
    found *= variance
    return np.asarray(found)


def inverse_of_lower(factor: Floats) -> Floats:
    """The inverse of a lower triangular matrix, shape (n, n).

    By halves, since NumPy solves triangular systems as if they were full: five times the time at 200 rows.

    >>> inverse_of_lower(np.array([[2.0, 0.0], [1.0, 4.0]])).tolist()
    [[0.5, 0.0], [-0.125, 0.25]]
    """
    count = len(factor)
    if count <= _SMALL:
        return np.asarray(np.tril(np.linalg.inv(factor)))
    half = count // 2
    upper, lower = inverse_of_lower(factor[:half, :half]), inverse_of_lower(factor[half:, half:])
    found = np.zeros_like(factor)
    found[:half, :half], found[half:, half:] = upper, lower
    found[half:, :half] = -lower @ (factor[half:, :half] @ upper)
    return found


@lru_cache(maxsize=1)
def _random_functions() -> tuple[Floats, Floats, Floats, Floats]:
    """Frequencies (inputs, features), phases (features,), weights (features, DRAWS) and noise (kernels, DRAWS).

    There are more rows than one process needs, so that each can take another part of them.
    """
    rng = np.random.default_rng(0)
    # The spectrum of Matern-5/2 is a multivariate t with 5 degrees of freedom.
    frequencies = rng.standard_normal((2 * _FEATURES, _FEATURES)) * np.sqrt(5 / rng.chisquare(5, _FEATURES))
    phases = rng.uniform(0, 2 * np.pi, _FEATURES)
    weights = rng.standard_normal((2 * _FEATURES, DRAWS))
    weights -= weights.mean(axis=1, keepdims=True)
    weights /= weights.std(axis=1, keepdims=True)
    return frequencies, phases, weights, rng.standard_normal((_MOST_ROWS, DRAWS))


@dataclass(frozen=True, eq=False)
class GaussianProcess:
    """A process over scaled inputs.

    Args:
        inputs: calibrated inputs, shape (n, d), not scaled; targets: clipped residuals less `centre`, shape (n,).
        centre: the median residual.
        middle, scale: of the inputs, shape (d,); lo, hi: where they are clamped.
        lengths: in scaled units, shape (d,); variance: of the process; noise: variance of one kernel's own deviation.
    """

    inputs: Floats
    targets: Floats
    centre: float
    middle: Floats
    scale: Floats
    lo: Floats
    hi: Floats
    lengths: Floats
    variance: float
    noise: float

    def _scaled(self, inputs: Floats) -> Floats:
        found: Floats = (np.clip(inputs, self.lo, self.hi) - self.middle) / (self.scale * self.lengths)
        return found

    @cached_property
    def _known(self) -> Floats:
        return self._scaled(self.inputs)

    @cached_property
    def _inverse_factor(self) -> Floats:
        """Inverse of the lower Cholesky factor of the covariance of the calibrated kernels, shape (n, n)."""
        covariance = matern(self._known, self._known, self.variance)
        covariance[np.diag_indices_from(covariance)] = self.variance * (1 + _JITTER) + self.noise
        return inverse_of_lower(np.asarray(np.linalg.cholesky(covariance), dtype=np.float64))

    @cached_property
    def _weights(self) -> Floats:
        found: Floats = self._inverse_factor.T @ (self._inverse_factor @ self.targets)
        return found

    def predict(self, inputs: Floats) -> tuple[Floats, Floats]:
        """Median residual and its standard deviation with the noise, both of shape (m,), for inputs (m, d)."""
        return self._predicted(matern(self._scaled(inputs), self._known, self.variance))

    def median(self, inputs: Floats) -> Floats:
        """The median residual alone, shape (m,): a tenth of the time of `predict`."""
        found: Floats = self.centre + matern(self._scaled(inputs), self._known, self.variance) @ self._weights
        return found

    def _predicted(self, covariance: Floats) -> tuple[Floats, Floats]:
        """The same from the covariance of the inputs with the calibrated kernels, shape (m, n)."""
        explained = covariance @ self._inverse_factor.T
        left = np.maximum(self.variance - np.einsum("ij,ij->i", explained, explained), 0.0)
        return self.centre + covariance @ self._weights, np.sqrt(left + self.noise)

    @cached_property
    def _paths(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Frequencies, phases and weights of the prior samples, and the correction that the data make of them."""
        spectrum, phases, weights, noise = _random_functions()
        # Another turn for every process: the errors of two families have nothing to do with one another.
        turn = int(np.abs(self.targets).sum() * 1e6) % _FEATURES
        frequencies = spectrum[turn : turn + len(self.lengths)]
        weights = weights[turn : turn + _FEATURES] * np.sqrt(2 * self.variance / _FEATURES)
        own = np.resize(noise[turn:], (len(self.targets), DRAWS))
        prior = np.cos(self._known @ frequencies + phases) @ weights
        observed = prior + np.sqrt(self.noise) * own
        return frequencies, phases, weights, self._inverse_factor.T @ (self._inverse_factor @ observed)

    def predict_with_draws(self, inputs: Floats) -> tuple[Floats, Floats, Floats]:
        """As `predict`, and draws of the median's error without the noise, (m, DRAWS), the same for equal inputs."""
        frequencies, phases, weights, correction = self._paths
        scaled = self._scaled(inputs)
        covariance = matern(scaled, self._known, self.variance)
        prior = np.cos(scaled @ frequencies + phases) @ weights
        return *self._predicted(covariance), prior - covariance @ correction

    def to_arrays(self) -> dict[str, Any]:
        """Plain arrays; `from_arrays` reads them back."""
        shape = np.array([self.centre, self.variance, self.noise])
        rows = np.stack([self.middle, self.scale, self.lo, self.hi, self.lengths])
        return {"inputs": self.inputs.astype(np.float32), "targets": self.targets, "numbers": shape, "columns": rows}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> GaussianProcess:
        """Read `to_arrays` back; the inputs are exact in float32 because the fit rounds them."""
        centre, variance, noise = (float(number) for number in arrays["numbers"])
        middle, scale, lo, hi, lengths = arrays["columns"]
        inputs = np.asarray(arrays["inputs"], dtype=np.float64)
        return cls(inputs, arrays["targets"], centre, middle, scale, lo, hi, lengths, variance, noise)
