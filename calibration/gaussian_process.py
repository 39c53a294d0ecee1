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
from numpy.typing import NDArray

from oracle.estimate import DRAWS, Floats

_FEATURES = 128
_JITTER = 1e-6
_STRIP = 64
"""Rows of a covariance that are computed at once."""

_BLOCK = 32
"""Rows of a factor that are solved at once."""

_MOST_ROWS = 512
"""Rows of noise that are drawn; a larger family uses them again."""


def matern(left: Floats, right: Floats, variance: float) -> Floats:
    """Matern-5/2 between inputs that are already divided by their lengths: (n, d) and (m, d) give (n, m)."""
    squares = (left * left).sum(axis=1)[:, None] + (right * right).sum(axis=1) - 2 * left @ right.T
    distance = np.sqrt(np.maximum(squares, 0.0, out=squares), out=squares)
    distance *= 5**0.5
    found = distance / 3
    found += 1
    found *= distance
    found += 1
    found *= np.exp(np.negative(distance, out=distance), out=distance)
    found *= variance
    return np.asarray(found)


def lower_matern(inputs: Floats, variance: float) -> Floats:
    """The lower triangle of `matern` of inputs with themselves; what stands above it is no number of anybody's.

    Strip by strip, since a strip stays in the cache: with the half that is left out, half of the time at 200 rows.
    """
    count = len(inputs)
    found = np.zeros((count, count))
    for begin in range(0, count, _STRIP):
        end = min(begin + _STRIP, count)
        found[begin:end, :end] = matern(inputs[begin:end], inputs[:end], variance)
    return found


class LowerFactor:
    """The lower Cholesky factor L of a covariance, to solve with.

    NumPy solves triangular systems as if they were full, and inverting L would take longer than finding it. Only the
    blocks along the diagonal are inverted here.

    Args:
        covariance: shape (n, n), of which the lower triangle is read.

    >>> LowerFactor(np.array([[4.0, 2.0], [2.0, 17.0]])).solve(np.array([[2.0], [9.0]])).tolist()
    [[1.0], [2.0]]
    """

    def __init__(self, covariance: Floats) -> None:
        self._factor = np.linalg.cholesky(covariance)
        count = len(covariance)
        blocks = np.tile(np.eye(_BLOCK), (-(-count // _BLOCK), 1, 1))
        for block, begin in zip(blocks, range(0, count, _BLOCK), strict=True):
            own = self._factor[begin : begin + _BLOCK, begin : begin + _BLOCK]
            block[: len(own), : len(own)] = own
        self._inverses = np.linalg.inv(blocks)

    def solve(self, right: Floats) -> Floats:
        """X of L X = right, both of shape (n, m)."""
        found = np.empty(right.shape)
        for inverse, begin in zip(self._inverses, range(0, len(found), _BLOCK), strict=True):
            end = min(begin + _BLOCK, len(found))
            left = right[begin:end] - self._factor[begin:end, :begin] @ found[:begin]
            found[begin:end] = inverse[: end - begin, : end - begin] @ left
        return found


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
        found: Floats = (np.clip(inputs, self.lo, self.hi) - self.middle) / (self.scale * self.lengths)
        return found

    @cached_property
    def _known(self) -> Floats:
        return self._scaled(self.inputs)

    @cached_property
    def _factor(self) -> LowerFactor:
        """Of the covariance of the calibrated kernels."""
        covariance = lower_matern(self._known, self.variance)
        covariance[np.diag_indices_from(covariance)] = self.variance * (1 + _JITTER) + self.noise
        return LowerFactor(covariance)

    @cached_property
    def _targets(self) -> Floats:
        """The targets as the factor sees them, shape (n,)."""
        found: Floats = self._factor.solve(self.targets[:, None])[:, 0]
        return found

    def predict(self, inputs: Floats) -> tuple[Floats, Floats]:
        """Median residual and its standard deviation with the noise, both of shape (m,), for inputs (m, d)."""
        return self._predicted(self._explained(self._scaled(inputs)))

    def _explained(self, scaled: Floats) -> Floats:
        """The covariance of the calibrated kernels with scaled inputs (m, d), as the factor sees it, shape (n, m)."""
        return self._factor.solve(matern(self._known, scaled, self.variance))

    def _predicted(self, explained: Floats) -> tuple[Floats, Floats]:
        left = np.maximum(self.variance - np.einsum("ij,ij->j", explained, explained), 0.0)
        return self.centre + self._targets @ explained, np.sqrt(left + self.noise)

    @cached_property
    def _prior(self) -> tuple[_Singles, _Singles, _Singles]:
        """Frequencies, phases and weights of the prior samples."""
        spectrum, phases, weights, _ = _random_functions()
        begin = self._turn
        scaled = weights[begin : begin + _FEATURES] * np.float32(np.sqrt(2 * self.variance / _FEATURES))
        return spectrum[begin : begin + len(self.lengths)], phases, scaled

    @property
    def _turn(self) -> int:
        """Another part of the random numbers for every process: the errors of two families are independent."""
        return int(np.abs(self.targets).sum() * 1e6) % _FEATURES

    def _prior_draws(self, scaled: Floats) -> Floats:
        """The prior samples at scaled inputs (m, d), shape (m, DRAWS)."""
        frequencies, phases, weights = self._prior
        waves = np.cos(scaled.astype(np.float32) @ frequencies + phases)
        return np.asarray(waves @ weights, dtype=np.float64)

    @cached_property
    def _observed(self) -> Floats:
        """What the prior samples would have been measured as, as the factor sees it, shape (n, DRAWS)."""
        noise = np.resize(_random_functions()[3][self._turn :], (len(self.targets), DRAWS))
        return self._factor.solve(self._prior_draws(self._known) + np.sqrt(self.noise) * noise)

    def predict_with_draws(self, inputs: Floats) -> tuple[Floats, Floats, Floats]:
        """As `predict`, and draws of the median's error without the noise, (m, DRAWS), the same for equal inputs."""
        scaled = self._scaled(inputs)
        explained = self._explained(scaled)
        return *self._predicted(explained), self._prior_draws(scaled) - explained.T @ self._observed

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
