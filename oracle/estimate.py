"""A number with its uncertainty: a middle value and K draws shared by everything in one answer.

Draw k of every `Estimate` belongs to the same k-th draw of the calibrated constants and residuals, so sums, maxima,
differences and ratios keep their correlations: the interval of A - A is exactly zero, and two answers that share
their constants can be compared more sharply than their own intervals suggest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

DRAWS = 64
"""K, the number of shared draws. Enough for 80 and 90 % intervals to about +-0.05 in level."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


_QUADRATURE = 4096


@lru_cache(maxsize=4096)
def slowest_of(count: int, log_sd: float) -> float:
    """The expected maximum of `count` independent log-normal times over their mean.

    The maximum of n has the distribution F^n, so its mean is the integral of F^-1(u^(1/n)) over u in (0, 1), taken
    here at the middles of equal steps.

    Args:
        count: how many times are compared; 1 gives exactly 1.
        log_sd: standard deviation of ln(time).
    """
    if count == 1 or log_sd == 0:
        return 1.0
    from statistics import NormalDist  # no step on one device has others to wait for

    steps = (np.arange(_QUADRATURE) + 0.5) / _QUADRATURE
    quantile = NormalDist().inv_cdf
    slowest = np.exp([log_sd * quantile(float(u)) for u in steps ** (1 / count)])
    any_one = np.exp([log_sd * quantile(float(u)) for u in steps])
    return float(np.mean(slowest) / np.mean(any_one))


def _quantile(ordered: Floats, q: float) -> float:
    """The q-quantile of ordered numbers, as `numpy.quantile` gives it, which loads masked arrays for that (20 ms).

    Raises:
        ValueError: q is not in [0, 1].
    """
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile is between 0 and 1, not {q}")
    place = q * (len(ordered) - 1)
    below = int(place)
    share = place - below
    lo, hi = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    # From the nearer end, as NumPy does it: the same digits, and exact at both ends.
    return lo + (hi - lo) * share if share < 0.5 else hi - (hi - lo) * (1 - share)


@dataclass(frozen=True, eq=False)
class Estimate:
    """A middle value and its shared draws; both have the same unit.

    Args:
        middle: the value to report.
        draws: shape (DRAWS,), or an empty array for a number that is known exactly.

    >>> a = Estimate(2.0, np.linspace(1.9, 2.1, DRAWS))
    >>> (a - a).interval()
    (0.0, 0.0)
    """

    middle: float
    draws: Floats

    @classmethod
    def exact(cls, value: float) -> Estimate:
        """A number without uncertainty."""
        return cls(float(value), np.full(DRAWS, float(value)))

    def _combine(self, other: Estimate | float, operation: Callable[[Any, Any], Any]) -> Estimate:
        if isinstance(other, Estimate):
            return Estimate(float(operation(self.middle, other.middle)), operation(self.draws, other.draws))
        return Estimate(float(operation(self.middle, other)), operation(self.draws, other))

    def __add__(self, other: Estimate | float) -> Estimate:
        return self._combine(other, np.add)

    __radd__ = __add__

    def __sub__(self, other: Estimate | float) -> Estimate:
        return self._combine(other, np.subtract)

    def __mul__(self, other: Estimate | float) -> Estimate:
        return self._combine(other, np.multiply)

    __rmul__ = __mul__

    def __truediv__(self, other: Estimate | float) -> Estimate:
        return self._combine(other, np.divide)

    def __rtruediv__(self, other: float) -> Estimate:
        return Estimate(other / self.middle, other / self.draws)

    def maximum(self, other: Estimate | float) -> Estimate:
        """The larger of the two, draw by draw."""
        return self._combine(other, np.maximum)

    def quantile(self, q: float) -> float:
        """The q-quantile of the draws."""
        return _quantile(np.sort(self.draws), q)

    def interval(self, level: float = 0.8) -> tuple[float, float]:
        """The central interval that holds `level` of the draws."""
        ordered = np.sort(self.draws)
        return _quantile(ordered, (1 - level) / 2), _quantile(ordered, (1 + level) / 2)

    def expected_max(self, count: int, log_sd: float) -> Estimate:
        """What the slowest of `count` devices is expected to take, where one of them takes this on average.

        Args:
            count: devices that wait for one another.
            log_sd: standard deviation of the logarithm of their times, from device to device and step to step.

        >>> Estimate.exact(1.0).expected_max(1, 0.05).middle
        1.0
        >>> round(Estimate.exact(1.0).expected_max(2, 0.05).middle, 4)  # about 1 + 0.05 / sqrt(pi)
        1.0282
        """
        return self * slowest_of(count, log_sd)

    @property
    def mean(self) -> float:
        """The mean of the draws: what sums over many steps (an epoch) converge to."""
        return float(np.mean(self.draws))
