"""Fit the constants of one kernel family.

What is minimised. Step times are sums, and their parts span five decades, so the error that counts is the relative
one. Dividing every row by its *measured* time would do that with a bias: a shape that happened to be measured fast
would count for more, and totals come out 13-20 % low where the misfit is large. Rows are divided by the *predicted*
time instead, in a few rounds (quasi-likelihood with a constant coefficient of variation; Wedderburn, Biometrika 61,
1974): the fit is then unbiased for the *mean* time, which is what sums need, without any correction after the fact.
Coefficients are non-negative, since no kernel runs faster for having more to do. Huber weights (Annals of
Mathematical Statistics 35, 1964) bound the pull of shapes far off the line; the bound of 2.5 standard deviations
keeps 99 % efficiency and nearly leaves the skew of ordinary misfit alone (totals 1.5 % low where the misfit has a
standard deviation of 40 %), where the customary 1.345 would pull the mean towards the median.

Which constants are kept. A constant is stored only where the data identify it: its coefficient is not zero and its 80
% interval spans less than a factor of 5. A launch alone is a fit only where all times are alike. Of all sets of
constants that are identified as a whole the largest is kept, and of equally large ones the one that fits best. A
constant needs two shapes (three constants need six): with fewer the interval itself could not be trusted. One shape
gives one rate, and nothing to say how far it holds: `UNTESTED_SD`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from sklearn import config_context
from sklearn.linear_model import LinearRegression

from calibration.features import QUANTITIES, canonical, execution_of, family, features, quantities, seconds
from calibration.holdout import folds
from calibration.intervals import Uncertainty, sandwich, stretch
from oracle.constants import LARGEST_LOG_SD, POSSIBLE, UNITS, WIDEST_FACTOR, Constant, KernelFit, MeasuredShape
from oracle.estimate import Floats
from oracle.pricing import LayerCall

UNTESTED_SD = 0.3
"""Standard deviation of ln(measured / predicted) that is assumed where there is no second layer to test with: additive
constants missed the kernels of five public collections by 9 to 26 % in the mean."""

_FIXED = ({QUANTITIES.index("launch_s")}, {QUANTITIES.index("call_s")})
"""What does not grow with the work, and is no fit by itself."""

_HUBER = 2.5
_ROUNDS = 12
_MISSED = 5.0
_SETTLED = 1e-5
_UNTESTED = Uncertainty(np.array([[UNTESTED_SD**2]]), np.array([np.inf]))


@dataclass(frozen=True)
class Dropped:
    """A constant that the measurements do not identify, and why."""

    quantity: str
    why: str


@dataclass(frozen=True)
class FamilyFit:
    """What came of fitting a family: nothing where not even one constant is identified."""

    fit: KernelFit | None
    dropped: tuple[Dropped, ...]


@dataclass(frozen=True)
class _Solution:
    """Seconds per unit of the chosen columns, how well their logarithms are known, and mean |ln(predicted / time)|."""

    columns: tuple[int, ...]
    coefficients: Floats
    known: Uncertainty | None
    loss: float

    def why_not(self, position: int) -> str:
        """Why a constant is not identified; empty where it is."""
        quantity, cost = QUANTITIES[self.columns[position]], float(self.coefficients[position])
        least, most = POSSIBLE[quantity]
        free = 1 / most if quantity.endswith("_per_s") else least
        if cost <= WIDEST_FACTOR * free:  # exactly zero, or what rounding left of it
            return "no measured time depends on it"
        if self.known is None:
            return "the shapes vary it only together with another"
        if 2 * self.known.half_widths[position] > math.log(WIDEST_FACTOR):
            return f"its interval spans more than a factor of {WIDEST_FACTOR:g}"
        return ""

    @property
    def identified(self) -> bool:
        """Whether all its constants are."""
        return not any(self.why_not(position) for position in range(len(self.columns)))

    @property
    def per_unit(self) -> Floats:
        """Seconds per unit of each of `QUANTITIES`; 0 for what is not among the columns."""
        full = np.zeros(len(QUANTITIES))
        full[list(self.columns)] = self.coefficients
        return full


def _non_negative(rows: Floats, target: Floats) -> Floats:
    """Least squares with coefficients of at least 0."""
    free: Floats = np.asarray(np.linalg.lstsq(rows, target)[0], dtype=np.float64)
    if (free > 0).all():  # then it is the optimum with bounds as well, at a hundredth of the cost
        return free
    bounded: Floats = LinearRegression(positive=True, fit_intercept=False).fit(rows, target).coef_
    return bounded


def _solve(table: Floats, times: Floats, columns: tuple[int, ...]) -> _Solution:
    """Weighted non-negative least squares in relative error; `table` is (n, 4), `times` (n,)."""
    chosen = table[:, columns]
    count, width = chosen.shape
    root = 1 / times
    found = np.zeros(width)
    for _ in range(_ROUNDS):
        rows = chosen * root[:, None]
        lengths = np.linalg.norm(rows, axis=0)
        before, found = found, _non_negative(rows / lengths, times * root) / lengths
        predicted = seconds(chosen, found)
        # A shape that the current constants miss entirely must not rule the next round.
        scale = np.clip(predicted, times / _MISSED, times * _MISSED)
        relative = np.abs(times - predicted) / scale
        bound = _HUBER * 1.4826 * float(np.median(relative)) * math.sqrt(count / max(count - width, 1))
        weights = np.minimum(1.0, bound / np.maximum(relative, 1e-300)) if bound > 0 else np.ones(count)
        root = np.sqrt(weights) / scale
        if (np.abs(found - before) <= _SETTLED * found).all():
            break
    loss = float(np.mean(np.abs(np.log(np.maximum(predicted, 1e-300) / times))))
    if count == 1:
        return _Solution(columns, found, _UNTESTED, loss)
    if (found <= 0).any():
        return _Solution(columns, found, None, loss)
    # Bounded residuals understate the spread by the share that is bounded (Huber, Annals of Statistics 1, 1973), and
    # weights that were learnt from the same rows cost about one more of them.
    correction = math.sqrt(count / (count - 1)) * weights.mean() / max((weights == 1).mean(), 0.5)
    spread = (times - predicted) * root * correction
    known = sandwich(chosen * root[:, None], spread)
    return _Solution(columns, found, known.relative_to(found) if known else None, loss)


def _choose(table: Floats, times: Floats, names: tuple[str, ...]) -> tuple[_Solution | None, tuple[Dropped, ...]]:
    """The largest identified set of columns, and why the others are left out."""
    columns = tuple(QUANTITIES.index(name) for name in names)
    affordable = max(1, len(times) // 2)
    tried: dict[tuple[int, ...], _Solution] = {}
    best = None
    for size in range(min(len(columns), affordable), 0, -1):
        # Of equally good constants the one that scales with the work is wanted: rates come first.
        for subset in combinations(columns[1:] + columns[:1], size):
            if set(subset) in _FIXED and times.max() > WIDEST_FACTOR * times.min():
                continue
            tried[tuple(sorted(subset))] = _solve(table, times, tuple(sorted(subset)))
        good = [solution for solution in tried.values() if solution.identified]
        if good:
            best = min(good, key=lambda solution: round(solution.loss, 9))
            break
    kept = best.columns if best else ()
    left_out = [column for column in columns if column not in kept]
    return best, tuple(Dropped(QUANTITIES[c], _reason(c, kept, tried, len(times))) for c in left_out)


def _reason(column: int, kept: tuple[int, ...], tried: dict[tuple[int, ...], _Solution], shapes: int) -> str:
    larger = tuple(sorted((*kept, column)))
    if len(larger) == 1 and shapes > 1 and larger not in tried:
        return "alone it does not explain times that grow with the work"
    if larger not in tried:
        return f"{shapes} shape{'s' if shapes > 1 else ''} cannot tell {len(larger)} constants apart"
    return tried[larger].why_not(larger.index(column)) or "with it another constant is not identified"


def _held_out(table: Floats, times: Floats, names: tuple[str, ...], groups: Sequence[object]) -> tuple[float, float]:
    """Mean relative error and sd of ln(measured / predicted) on layers left out of the fit."""
    log_ratios: list[float] = []
    for rows in folds(groups, times):
        rest = np.setdiff1d(np.arange(len(times)), rows)
        solution, _ = _choose(table[rest], times[rest], names)
        if solution is not None:
            log_ratios.extend(np.log(times[rows] / seconds(table[rows], solution.per_unit)))
    if len(set(groups)) < 2 or not log_ratios:
        return UNTESTED_SD, UNTESTED_SD
    ratios = np.array(log_ratios)
    error = float(np.mean(np.abs(np.exp(-ratios) - 1)))
    spread = float(np.sqrt(np.mean(ratios**2)) * stretch(len(set(groups)) - 1))
    return error, min(spread, LARGEST_LOG_SD)


def fit_family(shapes: Sequence[MeasuredShape]) -> FamilyFit:
    """Fit the constants of one family in one phase under one execution.

    Args:
        shapes: the measured shapes of that family, each once, at least one.

    Returns:
        The fit with its held-out error, and the constants that it could not identify.
    """
    first = shapes[0]
    key, phase = first.execution, first.phase
    calls = [canonical(LayerCall(shape.layer, shape.phase, shape.samples)) for shape in shapes]
    table = features(calls, execution_of(key, phase))
    times = np.array([shape.seconds for shape in shapes])
    names = quantities(first.layer, phase)
    with config_context(assume_finite=True, skip_parameter_validation=True):
        solution, dropped = _choose(table, times, names)
        if solution is None:
            return FamilyFit(None, dropped)
        error, residual_sd = _held_out(table, times, names, [shape.layer for shape in shapes])
    # Other measurements get other draws: what two calibrations do not know of a constant is independent.
    text = f"{family(first.layer, phase)}/{phase}/{key}/{times.tolist()}"
    fit = KernelFit(
        family=family(first.layer, phase),
        phase=phase,
        execution=key,
        constants=tuple(_constants(solution, text, first)),
        shapes=len(shapes),
        samples=sum(shape.count for shape in shapes),
        held_out_error=error,
        residual_sd=residual_sd,
        flop_lo=float(table[:, 1].min()),
        flop_hi=float(table[:, 1].max()),
        bytes_lo=float(table[:, 2].min()),
        bytes_hi=float(table[:, 2].max()),
    )
    return FamilyFit(fit, dropped)


def _constants(solution: _Solution, text: str, shape: MeasuredShape) -> Iterator[Constant]:
    """Name the coefficients; the text decides the draws."""
    if solution.known is None:  # not identified
        return
    draws = solution.known.draws(solution.coefficients, text)
    for position, column in enumerate(solution.columns):
        quantity = QUANTITIES[column]
        power = -1.0 if quantity.endswith("_per_s") else 1.0
        value = float(solution.coefficients[position]) ** power
        factor = math.exp(float(solution.known.half_widths[position]))
        yield Constant(
            family=family(shape.layer, shape.phase),
            phase=shape.phase,
            execution=shape.execution,
            quantity=quantity,
            value=value,
            unit=UNITS[quantity],
            lo=value / factor,
            hi=value * factor,
            draws=tuple((draws[position] ** power).tolist()),
        )
