"""A fitted Gaussian process as plain arrays, evaluated by NumPy alone. The fit lives in `calibration.residual_fit`.

Matern-5/2 with one length per input and no linear kernel; inputs are *clamped* a quarter of a standard deviation
beyond what was calibrated. Without the clamp and with a linear kernel such models returned 1e29 seconds outside their
range; with it the residual stays what it was at the border, and the roofline alone extrapolates.

Draws are functions, not numbers (pathwise conditioning, Wilson et al., ICML 2020): a prior sample from random Fourier
features, corrected by the data. The draws of a shape are then the same in whatever batch and process it is priced,
shapes that resemble one another share their error, and nothing needs the joint covariance of a whole question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.estimate import DRAWS, Floats

_FEATURES = 128
_JITTER = 1e-6
_STRIP = 64
"""Rows of a covariance that are computed at once."""

_SMALL = 32

_MOST_ROWS = 512
"""Rows of noise that are drawn; a larger family uses them again."""


def matern(left: Floats, right: Floats, variance: float) -> Floats:
    """Matern-5/2 between inputs that are already divided by their lengths: (n, d) and (m, d) give (n, m)."""
    return _of_squares(_factors(left)[0] @ _factors(right)[1].T, variance)


def matern_of(inputs: Floats, variance: float) -> Floats:
    """`matern` of inputs with themselves, strip by strip: a strip stays in the cache, and half of all is computed."""
    count = len(inputs)
    found = np.empty((count, count))
    left, right = _factors(inputs)
    right = right.T
    for begin in range(0, count, _STRIP):
        end = min(begin + _STRIP, count)
        strip = _of_squares(left[begin:end] @ right[:, :end], variance)
        found[begin:end, :end] = strip
        found[:begin, begin:end] = strip[:, :begin].T
    return found


def _factors(inputs: Floats) -> tuple[Floats, Floats]:
    """Rows whose product is five times the square of the distance of two inputs."""
    squares = 5 * np.einsum("ij,ij->i", inputs, inputs)[:, None]
    ones = np.ones_like(squares)
    return np.concatenate([-10 * inputs, squares, ones], axis=1), np.concatenate([inputs, ones, squares], axis=1)


def _of_squares(squares: Floats, variance: float) -> Floats:
    """Matern-5/2 of five times the squares of distances, which are overwritten."""
    distance = np.sqrt(np.maximum(squares, 0.0, out=squares), out=squares)
    found = distance * (1 / 3)
    found += 1
    found *= distance
    found += 1
    found *= np.exp(np.subtract(math.log(variance), distance, out=distance), out=distance)
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


class Solver:
    """Solves systems with one symmetric, positive matrix.

    The first question is answered by itself, in less time than it takes to invert anything. Who asks again may ask
    often, and gets the inverse of the Cholesky factor: the inverse of the matrix itself would lose the small
    differences that a standard deviation is made of.

    Args:
        matrix: shape (n, n).

    >>> solver = Solver(np.array([[4.0, 2.0], [2.0, 3.0]]))
    >>> [solver.solve(np.array([[8.0], [8.0]])).round(12).tolist() for _ in range(2)]
    [[[1.0], [2.0]], [[1.0], [2.0]]]
    """

    def __init__(self, matrix: Floats) -> None:
        self._matrix = matrix
        self._asked = False

    @cached_property
    def _inverse_factor(self) -> Floats:
        return inverse_of_lower(np.asarray(np.linalg.cholesky(self._matrix), dtype=np.float64))

    def solve(self, right: Floats) -> Floats:
        """X of matrix X = right, both of shape (n, m)."""
        if self._asked:
            return np.asarray(self._inverse_factor.T @ (self._inverse_factor @ right))
        self._asked = True
        return np.asarray(np.linalg.solve(self._matrix, right))


_Singles = NDArray[np.float32]
"""Draws need few digits, and NumPy's cosines of float32 take an eighth of the time."""


@lru_cache(maxsize=1)
def _random_functions() -> tuple[_Singles, _Singles, _Singles, Floats]:
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
    noise = rng.standard_normal((_MOST_ROWS, DRAWS))
    return frequencies.astype(np.float32), phases.astype(np.float32), weights.astype(np.float32), noise


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
        inside = np.minimum(np.maximum(inputs, self.lo), self.hi)
        found: Floats = (inside - self.middle) / (self.scale * self.lengths)
        return found

    @cached_property
    def _known(self) -> Floats:
        return self._scaled(self.inputs)

    @cached_property
    def _solver(self) -> Solver:
        """Of the covariance of what was measured of the calibrated kernels."""
        covariance = matern_of(self._known, self.variance)
        np.fill_diagonal(covariance, self.variance * (1 + _JITTER) + self.noise)
        return Solver(covariance)

    def predict(self, inputs: Floats) -> tuple[Floats, Floats]:
        """Median residual and its standard deviation with the noise, both of shape (m,), for inputs (m, d)."""
        return self._predicted(self._scaled(inputs))[:2]

    @cached_property
    def _weights(self) -> Floats:
        """What each calibrated kernel's covariance with an input counts in its median residual, shape (n,)."""
        return self._solver.solve(self.targets[:, None])[:, 0]

    def median(self, inputs: Floats) -> Floats:
        """The median residual alone, shape (m,): a tenth of the time of `predict`."""
        found: Floats = self.centre + self._weights @ matern(self._known, self._scaled(inputs), self.variance)
        return found

    def _predicted(self, scaled: Floats) -> tuple[Floats, Floats, Floats]:
        """The same for scaled inputs, and the shares that the calibrated kernels have in them, shape (n, m)."""
        covariance = matern(self._known, scaled, self.variance)
        shares = self._solver.solve(covariance)
        left = np.maximum(self.variance - np.add.reduce(covariance * shares, axis=0), 0.0)
        return self.centre + self.targets @ shares, np.sqrt(left + self.noise), shares

    @cached_property
    def _prior(self) -> tuple[_Singles, _Singles, _Singles]:
        """Frequencies, phases and weights of the prior samples."""
        spectrum, phases, weights, _ = _random_functions()
        begin = self._turn
        scaled = weights[begin : begin + _FEATURES] * np.float32(np.sqrt(2 * self.variance / _FEATURES))
        return spectrum[begin : begin + len(self.lengths)], phases, scaled

    @cached_property
    def _turn(self) -> int:
        """Another part of the random numbers for every process: the errors of two families are independent."""
        return int(np.abs(self.targets).sum() * 1e6) % _FEATURES

    def _prior_draws(self, scaled: Floats) -> _Singles:
        """The prior samples at scaled inputs (m, d), shape (m, DRAWS)."""
        frequencies, phases, weights = self._prior
        waves = scaled.astype(np.float32) @ frequencies
        waves += phases
        return np.asarray(np.cos(waves, out=waves) @ weights)

    @cached_property
    def _observed(self) -> Floats:
        """What the prior samples would have been measured as, shape (n, DRAWS)."""
        rows = np.arange(self._turn, self._turn + len(self.targets))
        noise = _random_functions()[3].take(rows, axis=0, mode="wrap")
        return np.asarray(self._prior_draws(self._known) + np.sqrt(self.noise) * noise)

    def predict_with_draws(self, inputs: Floats) -> tuple[Floats, Floats, Floats]:
        """As `predict`, and draws of the median's error without the noise, (m, DRAWS), the same for equal inputs."""
        scaled = self._scaled(inputs)
        middle, sd, shares = self._predicted(scaled)
        return middle, sd, self._prior_draws(scaled) - shares.T @ self._observed

    def to_arrays(self) -> dict[str, Any]:
        """Plain arrays; `from_arrays` reads them back."""
        shape = np.array([self.centre, self.variance, self.noise])
        rows = np.stack([self.middle, self.scale, self.lo, self.hi, self.lengths])
        return {"inputs": self.inputs.astype(np.float32), "targets": self.targets, "numbers": shape, "columns": rows}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> GaussianProcess:
        """Read `to_arrays` back; the inputs are exact in float32 because the fit rounds them."""
        centre, variance, noise = arrays["numbers"].tolist()
        middle, scale, lo, hi, lengths = arrays["columns"]
        inputs = np.asarray(arrays["inputs"], dtype=np.float64)
        return cls(inputs, arrays["targets"], centre, middle, scale, lo, hi, lengths, variance, noise)
