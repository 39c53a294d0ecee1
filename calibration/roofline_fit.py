"""Fit the constants of the soft roofline, and the plain fit that every figure is compared with.

What is minimised: differences of ln seconds, because step times span five decades and the relative error counts;
soft-L1 with a scale of 0.2, so that a few kernels for which the library chose a slow algorithm do not move the
constants; three starts, because the launch-, memory- and compute-bound corners are local minima of one another;
priors a tenth as strong as one kernel, which matter only for constants that the data do not identify. The Winograd
factor is fitted only where both kinds of convolution occur (otherwise it is the FLOP rate under another name), what a
call costs beside its launches only where their number differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares, nnls

from calibration.quantities import Quantities
from calibration.roofline import CONSTANTS, Roofline
from oracle.constants import POSSIBLE, WIDEST_FACTOR
from oracle.errors import BadInput
from oracle.estimate import Floats

Z80 = 1.2815515655446004
"""Half the width of a normal 80 % interval in standard deviations."""

IDENTIFIED_LOG_SD = float(np.log(WIDEST_FACTOR)) / (2 * Z80)
"""A constant whose logarithm is known no better than this is not identified."""

_SOFT_SCALE = 0.2
_PRIOR_WEIGHT = 0.1
_PRIOR_SD = np.array([2.0, 2.5, 2.5, 1.0, 0.5, 2.0])
_WAVE_MIDDLE = 0.7
# The bounds are those of the constants that are stored: rates enter as seconds per unit, the Winograd factor as ln.
_LEAST_S, _LEAST_CALL_S = (np.log(POSSIBLE[quantity][0]) for quantity in ("launch_s", "call_s"))
_LOWER = np.array(
    [
        _LEAST_S,
        *(-np.log(POSSIBLE[q][1]) for q in ("flop_per_s", "bytes_per_s")),
        -3.0,
        1e-6,
        _LEAST_CALL_S,
    ]
)
_UPPER = np.array([5.0, 0.0, 0.0, 3.0, 1.5, 5.0])
_IN_LOGS = [0, 1, 2, 5]
_CALL = CONSTANTS.index("call_s")
_STARTS = ((0.9, 1.0, 0.3), (0.5, 0.3, 1.0), (0.2, 0.1, 0.3))


@dataclass(frozen=True)
class RooflineFit:
    """Fitted constants.

    Args:
        roofline: the constants.
        fitted: the names of those that were free, in the order of `CONSTANTS`.
        covariance: of ln of the seconds and of the factor and the exponent as they are, of the free ones only.
    """

    roofline: Roofline
    fitted: tuple[str, ...]
    covariance: Floats

    @property
    def correlation(self) -> Floats:
        """Correlations of the free constants."""
        sd = np.sqrt(np.diag(self.covariance))
        found: Floats = self.covariance / np.outer(sd, sd)
        return found

    @property
    def not_identified(self) -> tuple[str, ...]:
        """The free constants that the measurements do not pin down."""
        sd = np.sqrt(np.diag(self.covariance))
        return tuple(name for name, value in zip(self.fitted, sd, strict=True) if value > IDENTIFIED_LOG_SD)


def _unpack(free: Floats, full: Floats, positions: Sequence[int]) -> Roofline:
    full = full.copy()
    full[list(positions)] = free
    full[_IN_LOGS] = np.exp(full[_IN_LOGS])
    if _CALL not in positions:
        full[_CALL] = 0.0
    return Roofline(*full.tolist())


def _start(kernels: Quantities, seconds: Floats, scales: Sequence[float]) -> Floats:
    flop = np.median(seconds / kernels.flop) if (kernels.flop > 0).all() else np.exp(_LOWER[1])
    moved = np.median(seconds / kernels.bytes)
    launch_s, call_s = (np.quantile(times, 0.05) * scales[0] for times in (seconds / kernels.launches, seconds))
    rates = np.log([launch_s, flop * scales[1], moved * scales[2]])
    values = [*rates, 0.0, _WAVE_MIDDLE, np.log(call_s)]
    found: Floats = np.clip(values, _LOWER + 1e-6, _UPPER - 1e-6)
    return found


def _free_positions(kernels: Quantities) -> list[int]:
    positions = [0, 2] if (kernels.flop <= 0).any() else [0, 1, 2]
    if 1 in positions:
        if 0 < kernels.winograd.mean() < 1:
            positions.append(3)
        positions.append(4)
    if np.ptp(kernels.launches) > 0:
        positions.append(_CALL)
    return positions


def fit_roofline(
    kernels: Quantities, seconds: Floats, offset: Floats | float = 0.0, start: Roofline | None = None
) -> RooflineFit:
    """Fit the constants of one family.

    Args:
        kernels: n kernels; seconds: measured, shape (n,), positive.
        seconds: measured times.
        offset: what a prior from other devices says of ln(seconds / roofline), shape (n,).
        start: constants close to the solution, tried alone (for the folds of a cross-validation).

    Raises:
        BadInput: no kernels.
    """
    if len(kernels) == 0:
        raise BadInput("a roofline cannot be fitted to no kernels")
    positions = _free_positions(kernels)
    target = np.log(seconds) - offset
    prior = _start(kernels, np.exp(target), (0.5, 0.5, 0.5))
    starts = [_start(kernels, np.exp(target), scales) for scales in _STARTS]
    if start is not None:
        near = np.array(start.values)
        near[_IN_LOGS] = np.log(np.maximum(near[_IN_LOGS], 1e-34))
        starts = [np.clip(near, _LOWER + 1e-6, _UPPER - 1e-6)]

    def misfit(free: Floats) -> Floats:
        pull = _PRIOR_WEIGHT * ((free - prior[positions]) / _PRIOR_SD[positions])
        logs = np.log(_unpack(free, prior, positions).seconds(kernels)) - target
        found: Floats = np.concatenate([logs, pull])
        return found

    solutions = [
        least_squares(
            misfit,
            begin[positions],
            loss="soft_l1",
            f_scale=_SOFT_SCALE,
            bounds=(_LOWER[positions], _UPPER[positions]),
            max_nfev=200,
        )
        for begin in starts
    ]
    best = min(solutions, key=lambda solution: float(solution.cost))
    roofline = _unpack(best.x, prior, positions)
    if 1 not in positions:
        roofline = Roofline(roofline.launch_s, 0.0, roofline.s_per_byte, call_s=roofline.call_s)
    spread = float(np.median(np.abs(misfit(best.x)[: len(seconds)]))) * 1.4826
    information = best.jac.T @ best.jac / max(spread, 1e-6) ** 2
    covariance = np.linalg.pinv(information, hermitian=True)
    return RooflineFit(roofline, tuple(CONSTANTS[position] for position in positions), covariance)


def fit_plain(kernels: Quantities, seconds: Floats) -> PlainFit:
    """The comparison: launch + a flop + b bytes by non-negative least squares of the relative error."""
    table = np.stack([kernels.launches, kernels.flop, kernels.bytes], axis=1) / seconds[:, None]
    lengths = np.maximum(np.linalg.norm(table, axis=0), 1e-300)
    found, _ = nnls(table / lengths, np.ones(len(kernels)))
    return PlainFit(tuple((found / lengths).tolist()))


@dataclass(frozen=True)
class PlainFit:
    """launch + a flop + b bytes."""

    coefficients: tuple[float, ...]

    def seconds(self, kernels: Quantities) -> Floats:
        """Seconds of each kernel, shape (n,)."""
        launch, flop, moved = self.coefficients
        found: Floats = launch * kernels.launches + flop * kernels.flop + moved * kernels.bytes
        return found
