"""The regression of one kernel family as stored: roofline, residual, range and error, evaluated by NumPy alone.

A prediction is exp(ln roofline + residual): the *median* time of a shape. Sums need means, which are larger by
exp(sd^2 / 2); the correction is bounded, since the sd of a family with a few wild kernels says little about its middle
(smearing by the mean ratio instead gave up 3 to 8 % on totals of real networks).

Intervals are measured, not derived: the z scores |ln t - prediction| / sd of kernels that were left out of refitted
folds say how many sd hold 80 or 90 % of them (a conformal quantile: the ceil((n + 1) level)-th smallest; Lei et al.,
JASA 113, 2018). The process's own sd covers 79 to 87 % at nominal 90 and is used only as the unit, scaled to what
kernels of that length missed (`calibration.local_spread`).

Extrapolation is said, not hidden: half an octave outside in any axis, 35 % outside in roofline seconds, an sd far above
those met in calibration, or a kernel, stride, group or alignment that was never measured. The value is kept and its
interval is twice as wide.

With a prior from other devices there are two branches, the device's own fit and one over the prior, and the prediction
is their blend in ln seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.array_checks import ROW_ARRAYS, check_arrays
from calibration.draws import MOST_DRAWN_SD, unit_mean_factors
from calibration.gaussian_process import GaussianProcess
from calibration.local_spread import LocalSpread, flat_spread
from calibration.quantities import Quantities, Rows
from calibration.roofline import Roofline
from calibration.shared_residual import SharedResidual
from calibration.trees import Trees
from oracle.errors import BadInput
from oracle.estimate import Floats

EXTRAPOLATED_SPREAD = 2.0
"""By how much the interval is widened where a shape is flagged."""

RELOAD_TOLERANCE = 1e-9
"""A model whose canaries differ by more than this after loading is refused."""

_AXIS_MARGIN = 0.5
_ROOFLINE_MARGIN = 0.35
_SD_MARGIN = 1.25
_LARGEST_CORRECTION = 0.3


class _Part(NamedTuple):
    """ln seconds of the roofline and of the median (n,), their sd (n,), and draws of the error (n, DRAWS) or None."""

    roofline: Floats
    logs: Floats
    sd: Floats
    error: Floats | None


@dataclass(frozen=True, eq=False)
class Branch:
    """A roofline and the residual over it.

    Args:
        roofline: the named constants.
        spread: sd of ln(measured / predicted) on left-out kernels; the sd where there is no process.
        limit: the largest residual that is believed.
        process_share: weight of the process in the residual; the trees have the rest.
        process, trees: the residual model, both or neither; prior: residual learnt on other devices.
    """

    roofline: Roofline
    spread: float
    limit: float = 0.0
    process_share: float = 0.5
    process: GaussianProcess | None = None
    trees: Trees | None = None
    prior: SharedResidual | None = None

    def offset(self, kernels: Quantities) -> Floats:
        """What the other devices say of ln(seconds / roofline), shape (n,); zeros without a prior."""
        return np.zeros(len(kernels)) if self.prior is None else self.prior.predict(kernels.columns)

    def predict(self, kernels: Quantities, own: Floats | None = None) -> _Part:
        """What the branch says of n kernels.

        Args:
            kernels: n kernels.
            own: standard normal draws of what each kernel does by itself, shape (n, DRAWS); None for no draws.
        """
        roofline = np.log(self.roofline.seconds(kernels))
        logs = roofline if self.prior is None else roofline + self.prior.predict(kernels.columns)
        if self.process is None:
            sd = np.full(len(kernels), self.spread)
            return _Part(roofline, logs, sd, None if own is None else self.spread * own)
        if own is None:
            smooth, sd = self.process.predict(kernels.columns)
            return _Part(roofline, logs + self._residual(kernels, smooth), sd, None)
        smooth, sd, shared = self.process.predict_with_draws(kernels.columns)
        error = shared + math.sqrt(self.process.noise) * own
        return _Part(roofline, logs + self._residual(kernels, smooth), sd, error)

    def _residual(self, kernels: Quantities, smooth: Floats) -> Floats:
        stepped = smooth if self.trees is None else self.trees.predict(kernels.columns)
        mixed = self.process_share * smooth + (1 - self.process_share) * stepped
        found: Floats = np.minimum(np.maximum(mixed, -self.limit), self.limit)
        return found

    def to_arrays(self) -> dict[str, Any]:
        """Plain arrays with dotted names."""
        found: dict[str, Any] = {
            "roofline": np.array(self.roofline.values),
            "numbers": np.array([self.spread, self.limit, self.process_share]),
        }
        for name in ("process", "trees", "prior"):
            part = getattr(self, name)
            if part is not None:
                found |= {f"{name}.{key}": value for key, value in part.to_arrays().items()}
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Branch:
        """Read `to_arrays` back."""
        spread, limit, share = arrays["numbers"].tolist()
        process, trees, prior = (_below(arrays, name) for name in ("process", "trees", "prior"))
        return cls(
            Roofline(*arrays["roofline"].tolist()),
            spread,
            limit,
            share,
            GaussianProcess.from_arrays(process) if process else None,
            Trees.from_arrays(trees) if trees else None,
            SharedResidual.from_arrays(prior) if prior else None,
        )


def _below(arrays: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key.removeprefix(f"{name}."): value for key, value in arrays.items() if key.startswith(f"{name}.")}


@dataclass(frozen=True, eq=False)
class Coverage:
    """What was calibrated, to tell interpolation from extrapolation.

    Args:
        lo, hi: of the log2 axes, shape (k,).
        roofline_lo, roofline_hi: of ln roofline seconds.
        largest_sd: the 95th percentile of the sd on left-out kernels.
        classes: pairs (column, value) of the classes that were seen, shape (s, 2).
    """

    lo: Floats
    hi: Floats
    roofline_lo: float
    roofline_hi: float
    largest_sd: float
    classes: Floats

    @classmethod
    def of(cls, kernels: Quantities, roofline_s: Floats, sd: Floats) -> Coverage:
        """The range of the calibrated kernels, with the sd on left-out ones."""
        seen = [(c, v) for c in range(kernels.classes.shape[1]) for v in np.unique(kernels.classes[:, c])]
        logs = np.log(roofline_s)
        return cls(
            lo=kernels.dims.min(axis=0),
            hi=kernels.dims.max(axis=0),
            roofline_lo=float(logs.min()),
            roofline_hi=float(logs.max()),
            largest_sd=float(np.quantile(sd, 0.95)),
            classes=np.array(seen, dtype=np.float64),
        )

    @cached_property
    def _seen(self) -> tuple[NDArray[np.intp], Floats, NDArray[np.intp]]:
        """Columns and values of the classes, column by column, and where each column begins."""
        columns = self.classes[:, 0].astype(np.intp)
        order = np.argsort(columns, kind="stable")
        first = np.searchsorted(columns[order], np.arange(int(columns.max()) + 1))
        return columns[order], self.classes[order, 1], first

    def left(self, kernels: Quantities, log_roofline: Floats, sd: Floats) -> Any:
        """Whether each kernel is an extrapolation, booleans of shape (n,)."""
        dims, logs = kernels.dims, log_roofline
        beyond = (dims < self.lo - _AXIS_MARGIN) | (dims > self.hi + _AXIS_MARGIN)
        outside = np.logical_or.reduce(beyond, axis=1)
        outside |= (logs < self.roofline_lo - _ROOFLINE_MARGIN) | (logs > self.roofline_hi + _ROOFLINE_MARGIN)
        outside |= sd > _SD_MARGIN * self.largest_sd
        columns, values, first = self._seen
        seen = np.logical_or.reduceat(kernels.classes[:, columns] == values, first, axis=1)
        return outside | ~np.logical_and.reduce(seen, axis=1)


@dataclass(frozen=True, eq=False)
class KernelPrediction:
    """Predictions of n kernels.

    Args:
        median_s: shape (n,); log_sd: of ln(measured / median), widened where extrapolated, shape (n,).
        extrapolated: booleans, shape (n,).
        z_scores: of the left-out kernels, sorted, in units of `log_sd`.
    """

    median_s: Floats
    log_sd: Floats
    extrapolated: Any
    z_scores: Floats

    def take(self, rows: Rows) -> KernelPrediction:
        """The predictions of some of the kernels."""
        return KernelPrediction(self.median_s[rows], self.log_sd[rows], self.extrapolated[rows], self.z_scores)

    @property
    def mean_s(self) -> Floats:
        """What sums of many kernels add up to, shape (n,)."""
        plain = np.where(self.extrapolated, self.log_sd / EXTRAPOLATED_SPREAD, self.log_sd)
        found: Floats = self.median_s * np.exp(np.minimum(plain**2, _LARGEST_CORRECTION) / 2)
        return found

    def interval(self, level: float) -> tuple[Floats, Floats]:
        """The interval that holds `level` of the measured times, low and high of shape (n,)."""
        width = conformal_quantile(self.z_scores, level) * self.log_sd
        return self.median_s * np.exp(-width), self.median_s * np.exp(width)


def conformal_quantile(scores: Floats, level: float) -> float:
    """The ceil((n + 1) level)-th smallest of n sorted scores, the largest where there are too few.

    >>> conformal_quantile(np.arange(1.0, 10.0), 0.8)
    8.0
    """
    rank = math.ceil((len(scores) + 1) * level)
    return float(scores[min(rank, len(scores)) - 1])


@dataclass(frozen=True, eq=False)
class KernelModel:
    """Everything that a calibration knows of one kernel family.

    Args:
        branches: the device's own fit first; shares: their weights in ln seconds, which sum to 1.
        coverage: what was calibrated.
        z_scores: of left-out kernels, sorted.
        names: the columns that it was fitted on.
        local_spread: what the sd of the branches is multiplied by.
    """

    branches: tuple[Branch, ...]
    shares: tuple[float, ...]
    coverage: Coverage
    z_scores: Floats
    names: tuple[str, ...]
    local_spread: LocalSpread = field(default_factory=flat_spread)

    def predict(self, kernels: Quantities) -> KernelPrediction:
        """Predict kernels, best many at once.

        Raises:
            BadInput: the kernels have other columns than those of the fit.
        """
        return self._prediction(kernels, [branch.predict(kernels) for branch in self._branches_for(kernels)])

    def predict_with_draws(self, kernels: Quantities, own: Floats) -> tuple[KernelPrediction, Floats]:
        """Predict kernels, and draw their seconds with mean `mean_s`, shape (n, DRAWS).

        Args:
            kernels: n kernels.
            own: standard normal draws of what each kernel does by itself, shape (n, DRAWS).

        Kernels that resemble one another share the error of the process; the squared z scores say how much larger the
        errors were than the process thought. What all kernels of a session share is not in these draws.

        Raises:
            BadInput: the kernels have other columns than those of the fit.
        """
        parts = [branch.predict(kernels, own) for branch in self._branches_for(kernels)]
        prediction = self._prediction(kernels, parts)
        deviation = self._blend([part.error for part in parts if part.error is not None])
        inflation = math.sqrt(max(1.0, float(self.z_scores @ self.z_scores) / len(self.z_scores)))
        local = self.local_spread.factor(np.log(prediction.median_s))
        deviation *= (np.where(prediction.extrapolated, EXTRAPOLATED_SPREAD, 1.0) * inflation * local)[:, None]
        drawn_sd = np.sqrt((deviation**2).mean(axis=1, keepdims=True))
        deviation *= MOST_DRAWN_SD / np.maximum(drawn_sd, MOST_DRAWN_SD)
        return prediction, prediction.mean_s[:, None] * unit_mean_factors(deviation)

    def _branches_for(self, kernels: Quantities) -> tuple[Branch, ...]:
        if kernels.names != self.names:
            raise BadInput("these kernels have other quantities than those that the model was fitted on")
        return self.branches

    def _blend(self, parts: Sequence[Floats]) -> Floats:
        """The weighted sum of what the branches say."""
        return sum(
            (share * part for share, part in zip(self.shares[1:], parts[1:], strict=True)), self.shares[0] * parts[0]
        )

    def _prediction(self, kernels: Quantities, parts: Sequence[_Part]) -> KernelPrediction:
        """Blend the branches' ln seconds and sd."""
        logs = self._blend([part.logs for part in parts])
        sd = np.sqrt(self._blend([part.sd**2 for part in parts]))
        outside = self.coverage.left(kernels, parts[0].roofline, sd)
        spread = np.where(outside, EXTRAPOLATED_SPREAD, 1.0) * sd * self.local_spread.factor(logs)
        return KernelPrediction(np.exp(logs), spread, outside, self.z_scores)

    def to_arrays(self, canaries: Quantities) -> dict[str, Any]:
        """Plain arrays with dotted names, and what the model says of a few canary kernels; `from_arrays` reads them."""
        cover = self.coverage
        found: dict[str, Any] = {
            "names": np.array(self.names),
            "shares": np.array(self.shares),
            "z_scores": self.z_scores,
            _SPREAD: np.stack([self.local_spread.at, self.local_spread.log_factor]),
            "coverage.axes": np.stack([cover.lo, cover.hi]),
            "coverage.numbers": np.array([cover.roofline_lo, cover.roofline_hi, cover.largest_sd]),
            "coverage.classes": cover.classes,
            "canary.log_s": np.log(self.predict(canaries).median_s),
        }
        found |= {f"canary.{key}": getattr(canaries, key) for key in _KERNEL_ARRAYS}
        for number, branch in enumerate(self.branches):
            found |= {f"branch{number}.{key}": value for key, value in branch.to_arrays().items()}
        own, other = (found.get(_INPUTS.format(number)) for number in (0, 1))
        if own is not None and other is not None and np.array_equal(own, other):
            del found[_INPUTS.format(1)]
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> KernelModel:
        """Read `to_arrays` back.

        Raises:
            BadInput: the canaries come out differently.
        """
        model, canaries = read_arrays(arrays)
        canaries.check(model.predict(canaries.kernels))
        return model


@dataclass(frozen=True, eq=False)
class Canaries:
    """A few kernels, and ln of the median seconds that a model predicted of them when it was stored."""

    kernels: Quantities
    log_s: Floats

    def check(self, prediction: KernelPrediction) -> None:
        """Compare what the model that was read predicts of the canaries.

        Raises:
            BadInput: they come out differently: the arrays were changed, or NumPy computes otherwise here.
        """
        off = np.abs(np.log(prediction.median_s) - self.log_s).max()
        if not off <= RELOAD_TOLERANCE:
            raise BadInput(f"a stored kernel model does not reproduce its canary predictions (off by {off:.1e} in ln)")


def read_arrays(arrays: Mapping[str, Any]) -> tuple[KernelModel, Canaries]:
    """Read `KernelModel.to_arrays` back, without a look at the canaries.

    Raises:
        KeyError: an array is missing; BadInput, ValueError: one cannot be what a fit wrote.
    """
    check_arrays(arrays)
    names, shares = tuple(arrays["names"].tolist()), tuple(arrays["shares"].tolist())
    if "branch1.process.numbers" in arrays and _INPUTS.format(1) not in arrays:
        arrays = {**arrays, _INPUTS.format(1): arrays[_INPUTS.format(0)]}
    branches = tuple(Branch.from_arrays(_below(arrays, f"branch{number}")) for number in range(len(shares)))
    low, high, largest_sd = arrays["coverage.numbers"].tolist()
    lo, hi = arrays["coverage.axes"]
    coverage = Coverage(lo, hi, low, high, largest_sd, arrays["coverage.classes"])
    kernels = Quantities(**{key: arrays[f"canary.{key}"] for key in _KERNEL_ARRAYS}, names=names)
    spread = LocalSpread(*arrays[_SPREAD]) if _SPREAD in arrays else flat_spread()
    model = KernelModel(branches, shares, coverage, arrays["z_scores"], names, spread)
    return model, Canaries(kernels, arrays["canary.log_s"])


_SPREAD = "local_spread"
"""Absent from models that were stored before there was one."""

_INPUTS = "branch{}.process.inputs"
"""Both branches see the same kernels, so theirs are stored once: a sixth of a family with a prior."""

_KERNEL_ARRAYS = (*ROW_ARRAYS, "dims", "classes", "columns")
