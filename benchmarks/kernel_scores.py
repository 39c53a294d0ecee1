"""Score the regression of kernel times on families of measured kernels, beside the plain fit of three constants."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.kernel_data import Family
from calibration.device_prior import learn_prior
from calibration.draws import unit_mean_factors
from calibration.kernel_model import KernelModel, KernelPrediction
from calibration.kernel_regression import fit_kernel_model
from calibration.medoids import choose_medoids
from calibration.quantities import Quantities
from calibration.repeats import UNSEEN_DRIFT_SD
from calibration.roofline_fit import fit_plain, fit_roofline
from calibration.shared_residual import SharedResidual
from oracle.estimate import DRAWS, Floats

MOST_TESTED = 2000
LAYERS = 50
SUMS = 200
LEVELS = (0.8, 0.9)

Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Scored:
    """Predictions of kernels that no fit has seen."""

    family: str
    device: str
    measured_s: Floats
    plain_s: Floats
    prediction: KernelPrediction
    draws_s: Floats = field(default_factory=lambda: np.zeros((0, DRAWS)))

    @property
    def error(self) -> float:
        """Mean |predicted / measured - 1| in %."""
        return mape(self.prediction.median_s, self.measured_s)

    @property
    def plain_error(self) -> float:
        """The same of the plain fit."""
        return mape(self.plain_s, self.measured_s)


def mape(predicted: Floats, measured: Floats) -> float:
    """Mean |predicted / measured - 1| in %."""
    return 100 * float(np.mean(np.abs(predicted / measured - 1)))


def choose(family: Family, count: int, seed: int, how: str) -> Index:
    """Rows to calibrate on: k-means medoids of the axes, or at random."""
    if how == "random":
        return np.sort(np.random.default_rng(seed).permutation(len(family.seconds))[:count])
    return choose_medoids(family.kernels.dims, nominal_seconds(family.kernels), count, seed)


def nominal_seconds(kernels: Quantities) -> Floats:
    """Seconds on no GPU in particular, shape (n,): known before anything is measured."""
    found: Floats = 1e-5 * kernels.launches + kernels.flop / 1e13 + kernels.bytes / 5e11
    return found


def calibrate(family: Family, rows: Index, prior: SharedResidual | None = None) -> KernelModel:
    """The model of some rows of a family; siblings are left out together."""
    part = family.take(rows)
    return fit_kernel_model(part.kernels, part.seconds, part.siblings.tolist(), prior)[0]


def score(family: Family, model: KernelModel, rows: Index, test: Index, draws: int = 0) -> Scored:
    """Predict the test rows with a model of the other rows."""
    part, unseen = family.take(rows), family.take(test)
    plain = fit_plain(part.kernels, part.seconds).seconds(unseen.kernels)
    rng = np.random.default_rng(0)
    drawn = np.zeros((0, DRAWS))
    if draws:
        own = rng.standard_normal((min(draws, len(test)), DRAWS))
        _, drawn = model.predict_with_draws(unseen.kernels.take(slice(draws)), own)
        drawn = drawn * unit_mean_factors(UNSEEN_DRIFT_SD * rng.standard_normal(DRAWS))
    return Scored(family.name, family.device, unseen.seconds, plain, model.predict(unseen.kernels), drawn)


def unseen_rows(family: Family, rows: Index, seed: int) -> Index:
    """Up to MOST_TESTED rows outside the calibration, in random order."""
    rest = np.setdiff1d(np.arange(len(family.seconds)), rows)
    return np.random.default_rng(1000 + seed).permutation(rest)[:MOST_TESTED]


def held_out(family: Family, count: int, seed: int, how: str) -> Scored:
    """Calibrate on `count` kernels and predict others."""
    rows = choose(family, count, seed, how)
    return score(family, calibrate(family, rows), rows, unseen_rows(family, rows, seed), draws=500)


def sibling_folds(family: Family, seed: int, folds: int = 5) -> Scored:
    """Predict every kernel from fits that have seen no sibling of it."""
    names = np.unique(family.siblings)
    fold_of = np.random.default_rng(seed).permutation(len(names)) % folds
    parts = []
    for fold in range(folds):
        test = np.flatnonzero(np.isin(family.siblings, names[fold_of == fold]))
        rows = np.setdiff1d(np.arange(len(family.seconds)), test)
        parts.append(score(family, calibrate(family, rows), rows, test))
    return pool(parts)


def pool(parts: Sequence[Scored]) -> Scored:
    """Several scores of one family as one; z scores are those of the first, intervals are kept by scaling the sd."""
    first = parts[0].prediction
    prediction = KernelPrediction(
        np.concatenate([part.prediction.median_s for part in parts]),
        np.concatenate([part.prediction.log_sd for part in parts]),
        np.concatenate([part.prediction.extrapolated for part in parts]),
        first.z_scores,
    )
    measured, plain = (np.concatenate([getattr(p, name) for p in parts]) for name in ("measured_s", "plain_s"))
    return Scored(parts[0].family, parts[0].device, measured, plain, prediction)


@dataclass(frozen=True)
class SumScore:
    """Sums of layers: mean |error|, bias, the plain fit's error, and coverage of the 90 % interval, all in %."""

    error: float
    bias: float
    plain_error: float
    coverage: float


def sum_scores(scored: Scored, seed: int) -> SumScore:
    """Score sums of LAYERS random kernels out of those that were not seen."""
    rng = np.random.default_rng(seed)
    limit = len(scored.draws_s)
    errors, plain_errors, inside = [], [], []
    mean_s = scored.prediction.mean_s
    for _ in range(SUMS):
        rows = rng.choice(limit, LAYERS, replace=False)
        total = scored.measured_s[rows].sum()
        errors.append(mean_s[rows].sum() / total - 1)
        plain_errors.append(scored.plain_s[rows].sum() / total - 1)
        low, high = np.quantile(scored.draws_s[rows].sum(axis=0), [0.05, 0.95])
        inside.append(low <= total <= high)
    return SumScore(
        100 * float(np.mean(np.abs(errors))),
        100 * float(np.mean(errors)),
        100 * float(np.mean(np.abs(plain_errors))),
        100 * float(np.mean(inside)),
    )


@dataclass(frozen=True)
class CoverageScore:
    """Of one level: coverage in %, median high / low, and the interval score relative to the measured time."""

    covered: float
    ratio: float
    interval_score: float


def coverage(scored: Scored, level: float) -> CoverageScore:
    """Coverage of the intervals (Gneiting, Raftery, JASA 102, 2007, for the interval score; smaller is better)."""
    low, high = scored.prediction.interval(level)
    t = scored.measured_s
    missed = np.maximum(low - t, 0) + np.maximum(t - high, 0)
    return CoverageScore(
        100 * float(np.mean((low <= t) & (t <= high))),
        float(np.median(high / low)),
        float(np.mean((high - low + 2 / (1 - level) * missed) / t)),
    )


@dataclass(frozen=True)
class BeyondScore:
    """Kernels beyond the calibrated range: errors in % of the model and of the plain fit, and the flagged part in %."""

    near: float
    near_plain: float
    far: float
    far_plain: float
    flagged_beyond_100: float
    flagged_inside: float


def beyond(family: Family, count: int, seed: int, how: str) -> BeyondScore:
    """Calibrate on small kernels and predict those 3 to 10 and 10 to 100 times beyond them.

    Small is the lower half, or all below eight times the smallest where that is more: kernels that take nothing
    but their launch time say nothing of what lies beyond, whatever the model.
    """
    everything = np.random.default_rng(seed).permutation(len(family.seconds))
    ruler = family.take(everything[:500])
    sizes = fit_roofline(ruler.kernels, ruler.seconds).roofline.seconds(family.kernels)
    small = np.flatnonzero(sizes <= max(float(np.quantile(sizes, 0.5)), 8 * float(sizes.min())))
    rows = small[choose(family.take(small), min(count, len(small) // 2), seed, how)]
    model = calibrate(family, rows)
    own = model.branches[0].roofline.seconds(family.kernels)
    ratio = own / own[rows].max()
    inside = np.setdiff1d(small[ratio[small] <= 1], rows)
    results: list[float] = []
    for low, high in ((3, 10), (10, 100)):
        test = np.flatnonzero((ratio > low) & (ratio <= high))[:MOST_TESTED]
        scored = score(family, model, rows, test) if len(test) else None
        results += [scored.error, scored.plain_error] if scored else [float("nan")] * 2
    far = np.flatnonzero(ratio > 100)[:MOST_TESTED]
    flags = [
        100 * float(np.mean(model.predict(family.kernels.take(part)).extrapolated)) if len(part) else float("nan")
        for part in (far, inside[:MOST_TESTED])
    ]
    return BeyondScore(*results, *flags)


def new_device(family: Family, others: Sequence[Family], seed: int, how: str, count: int = 25) -> tuple[Scored, Scored]:
    """A device with few kernels: with its own model, and with the other devices as a prior.

    The others do not show the shapes that calibrate the new device.
    """
    rows = choose(family, count, seed, how)
    known = {tuple(axes) for axes in family.kernels.dims[rows].round(9)}
    sources = []
    for other in others:
        keep = np.array([i for i, axes in enumerate(other.kernels.dims.round(9)) if tuple(axes) not in known])
        sources.append((other.kernels.take(keep), other.seconds[keep]))
    test = unseen_rows(family, rows, seed)
    alone = score(family, calibrate(family, rows), rows, test)
    return alone, score(family, calibrate(family, rows, learn_prior(sources)), rows, test)


def mean(values: Sequence[float]) -> float:
    """The mean of the numbers that there are."""
    known = [value for value in values if not np.isnan(value)]
    return statistics.fmean(known) if known else float("nan")
