"""Fit the regression of one kernel family: roofline, residual over it, gate, error and range.

Everything is refitted in five folds: what the left-out kernels show decides (a) how much of the residual is process and
how much trees, (b) the gate: below some 50 kernels a residual can lose against the roofline alone, (c) the z scores
behind the intervals, and for which lengths of kernels they are larger, (d) the blend with a prior from other devices.
Kernels of one `group` (the same layer with other samples) stay on one side, because siblings of a shape make every
score look better than it is.

The blend is by 1 / error^12 with the mean root of |ln(predicted / measured)| as error, where that of the branch over
the prior counts half a standard error worse than it looks (that of the paired difference of the two branches on the
left-out kernels). With 25 kernels the two errors are known to a tenth or so, and a mistake costs more on one side:
where a prior does not help, the own model is what there was anyway. The root is there because errors have heavy tails:
a few kernels for which the library changed its algorithm must not decide between the branches. Tried on 57 pairs of a
family and a GPU, leaving one GPU out: with plain errors to the power 6 an elementwise kernel on a T4 lost 7.4 % against
its own model, with a step of 0.75 standard errors 5.8 %; with the root 2.8 %, and the worst product 3.4 and not 4.6 %,
for 23 instead of 24 % gained on convolutions. On seeds that chose nothing the worst pair lost 3.8 %.

The gate and the mixture take what looks best on the left-out kernels. Doubting both (a process alone unless trees are
half a standard error better, the roofline alone only where it is a whole one better) was tried: with 25 kernels
convolutions on GPUs were missed by 22 in place of 24 % without a prior, but with one they were not priced better,
single families lost up to 6 % by it, and with a hundred kernels it changes nothing.

Bad rows are said at once: a time that is not positive, or measurements of one shape only, is an error; contradicting
repeats and too few shapes are notes, which belong to the calibration and are shown with its answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibration.kernel_model import Branch, Coverage, KernelModel
from calibration.local_spread import fit_local_spread, flat_spread, unseen_factors
from calibration.quantities import Quantities
from calibration.residual_fit import fit_process, fit_trees
from calibration.roofline_fit import RooflineFit, fit_roofline
from calibration.shared_residual import SharedResidual
from oracle.errors import BadInput
from oracle.estimate import Floats

RESIDUAL_SHAPES = 16
"""Fewer shapes than this get constants only: a residual could not be tested."""

UNTESTED_LOG_SD = 0.3
"""sd of ln(measured / predicted) that is assumed where there are too few shapes to leave any out."""

_MOST_SCORES = 400
"""z scores that are kept of a large family, as quantiles of all of them."""

_FOLDS = 5
_FOLD_ROUNDS = 12
_SHARES = (1.0, 0.75, 0.5, 0.25)
_CONTRADICTION = 1.25
_BLEND_POWER = 12.0
_DOUBT = 0.5
"""Standard errors by which the branch over a prior has to be better than it looks."""


@dataclass(frozen=True)
class RegressionReport:
    """What a fit found out about itself.

    Args:
        constants: the roofline's constants with their covariance.
        roofline_error, error: mean |predicted / measured - 1| on left-out kernels, of the constants and of the model.
        own_error: the same as `error` without a prior.
        log_spread: root mean square of ln(measured / predicted) on left-out kernels, of the model.
        process_share: weight of the process in the residual; 0.0 where the gate kept the roofline alone.
        prior_share: weight of the prior's branch.
        notes: what a reader has to know.
    """

    constants: RooflineFit
    roofline_error: float
    error: float
    own_error: float
    log_spread: float
    process_share: float
    prior_share: float
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Sample:
    kernels: Quantities
    seconds: Floats
    groups: NDArray[np.intp]

    def take(self, rows: NDArray[np.intp]) -> _Sample:
        return _Sample(self.kernels.take(rows), self.seconds[rows], self.groups[rows])


@dataclass(frozen=True, eq=False)
class _LeftOut:
    """What refitted folds say of kernels that they have not seen, all of shape (n,), in ln seconds."""

    roofline: Floats
    process: Floats
    trees: Floats
    sd: Floats


def _cleaned(kernels: Quantities, seconds: Floats, groups: Sequence[Hashable] | None) -> tuple[_Sample, list[str]]:
    """One row per shape with the median of its times, and notes."""
    seconds = np.asarray(seconds, dtype=np.float64)
    if len(seconds) != len(kernels):
        raise BadInput(f"{len(kernels)} kernels have {len(seconds)} times")
    if groups is not None and len(groups) != len(kernels):
        raise BadInput(f"{len(kernels)} kernels have {len(groups)} groups")
    bad = np.flatnonzero(~(np.isfinite(seconds) & (seconds > 0)))
    if len(bad):
        first = f"the first is {seconds[bad[0]]} in row {bad[0]}"
        raise BadInput(f"{len(bad)} of {len(seconds)} measured times are not positive numbers; {first}")
    key = np.concatenate([kernels.dims, kernels.classes, kernels.columns], axis=1)
    _, first_rows, shape = np.unique(key, axis=0, return_index=True, return_inverse=True)
    if len(first_rows) < 2:
        raise BadInput(f"{len(seconds)} measurements of one shape cannot tell launch from work; measure other shapes")
    order = np.argsort(shape.ravel(), kind="stable")
    repeats = np.split(seconds[order], np.flatnonzero(np.diff(shape.ravel()[order])) + 1)
    medians = np.array([np.median(times) for times in repeats])
    apart = np.array([times.max() / times.min() for times in repeats])
    notes = []
    if (apart > _CONTRADICTION).any():
        count = int((apart > _CONTRADICTION).sum())
        notes.append(
            f"{count} of {len(medians)} shapes were measured with times up to a factor of {apart.max():.3g} apart; "
            "their medians are used"
        )
    if len(medians) > 2 and np.ptp(medians) == 0:
        notes.append("all times are equal, so only the launch time is known")
    numbers: dict[Hashable, int] = {}
    given = range(len(kernels)) if groups is None else groups
    names = np.array([numbers.setdefault(group, len(numbers)) for group in given])
    keep = np.sort(first_rows)
    where = np.argsort(np.argsort(first_rows))
    ordered = np.empty_like(medians)
    ordered[where] = medians
    return _Sample(kernels.take(keep), ordered, names[keep]), notes


def _folds(sample: _Sample) -> list[NDArray[np.intp]]:
    """Rows of each fold; groups stay together, every fold spans the range of times."""
    names, owner = np.unique(sample.groups, return_inverse=True)
    typical = np.array([np.median(sample.seconds[owner == index]) for index in range(len(names))])
    order = np.argsort(typical, kind="stable")
    rng = np.random.default_rng(0)
    fold = np.empty(len(names), dtype=int)
    for begin in range(0, len(order), _FOLDS):
        block = order[begin : begin + _FOLDS]
        fold[block] = rng.permutation(_FOLDS)[: len(block)]
    rows = [np.flatnonzero(fold[owner] == index) for index in range(_FOLDS)]
    return [row for row in rows if len(row)]


def _fit_branch(sample: _Sample, prior: SharedResidual | None, near: Branch | None) -> tuple[Branch, RooflineFit]:
    """A roofline and, with enough shapes, an ungated residual over it; `near` is a fit of much the same kernels."""
    offset = np.zeros(len(sample.seconds)) if prior is None else prior.predict(sample.kernels.columns)
    constants = fit_roofline(sample.kernels, sample.seconds, offset, near.roofline if near else None)
    branch = Branch(constants.roofline, UNTESTED_LOG_SD, prior=prior)
    if len(sample.seconds) < (RESIDUAL_SHAPES if near is None else 1):
        return branch, constants
    if near is not None and near.process is None:
        return branch, constants
    residuals = np.log(sample.seconds / constants.roofline.seconds(sample.kernels)) - offset
    if near is None:
        process = fit_process(sample.kernels.columns, residuals)
    else:
        process = fit_process(sample.kernels.columns, residuals, near.process, _FOLD_ROUNDS)
    trees = fit_trees(sample.kernels.columns, residuals)
    limit = float(np.abs(residuals).max()) + 0.1
    return replace(branch, process=process, trees=trees, limit=limit), constants


def _leave_out(sample: _Sample, prior: SharedResidual | None, branch: Branch) -> _LeftOut:
    """Refit everything in folds and predict what each has not seen."""
    count = len(sample.seconds)
    found = _LeftOut(np.zeros(count), np.zeros(count), np.zeros(count), np.full(count, UNTESTED_LOG_SD))
    for rows in _folds(sample):
        rest = np.setdiff1d(np.arange(count), rows)
        fold, _ = _fit_branch(sample.take(rest), prior, branch)
        unseen = sample.kernels.take(rows)
        found.roofline[rows] = np.log(fold.roofline.seconds(unseen)) + fold.offset(unseen)
        if fold.process is not None and fold.trees is not None:
            process, found.sd[rows] = fold.process.predict(unseen.columns)
            found.process[rows] = np.clip(process, -fold.limit, fold.limit)
            found.trees[rows] = np.clip(fold.trees.predict(unseen.columns), -fold.limit, fold.limit)
    return found


def mean_error(log_predicted: Floats, seconds: Floats) -> float:
    """Mean |predicted / measured - 1|."""
    return float(np.mean(np.abs(np.exp(log_predicted) / seconds - 1)))


def _gated(branch: Branch, left_out: _LeftOut, seconds: Floats) -> tuple[Branch, Floats, Floats]:
    """The branch with the mixture that the left-out kernels like best, and its left-out ln seconds and sd."""
    alone = left_out.roofline
    spread = float(np.sqrt(np.mean((np.log(seconds) - alone) ** 2)))
    if branch.process is not None:
        mixtures = {s: alone + s * left_out.process + (1 - s) * left_out.trees for s in _SHARES}
        errors = {s: mean_error(logs, seconds) for s, logs in mixtures.items()}
        share = min(errors, key=errors.__getitem__)
        if errors[share] < mean_error(alone, seconds):
            return replace(branch, process_share=share, spread=spread), mixtures[share], left_out.sd
    plain = Branch(branch.roofline, max(spread, 1e-3), prior=branch.prior, process_share=0.0)
    return plain, alone, np.full(len(seconds), plain.spread)


def fit_kernel_model(
    kernels: Quantities, seconds: Floats, groups: Sequence[Hashable] | None = None, prior: SharedResidual | None = None
) -> tuple[KernelModel, RegressionReport]:
    """Fit one kernel family of one device.

    Args:
        kernels: the n measured kernels; seconds: their times, shape (n,).
        seconds: measured times; several of one shape are repeats, their median counts.
        groups: n names; kernels of one name are left out together (by default each by itself).
        prior: the residual over the roofline that other devices show (`calibration.device_prior`).

    Raises:
        BadInput: a time that is not a positive number, fewer than two shapes, other than n groups, or a prior over
            more columns than the kernels have.
    """
    sample, notes = _cleaned(kernels, seconds, groups)
    count = len(sample.seconds)
    if count < RESIDUAL_SHAPES:
        notes.append(f"{count} shapes give constants only; {RESIDUAL_SHAPES} or more also give a residual over them")
    testable = count > _FOLDS and len(np.unique(sample.groups)) > 1
    fitted = []
    for offset in (None,) if prior is None else (None, prior):
        branch, constants = _fit_branch(sample, offset, None)
        left_out = _leave_out(sample, offset, branch) if testable else _in_sample(sample, branch)
        fitted.append((constants, left_out, *_gated(branch, left_out, sample.seconds)))
    shares = _blend([logs for *_, logs, _ in fitted], sample.seconds)
    logs = sum(share * entry[3] for share, entry in zip(shares, fitted, strict=True))
    sd = np.sqrt(sum(share * entry[4] ** 2 for share, entry in zip(shares, fitted, strict=True)))
    branches = tuple(entry[2] for entry in fitted)
    if not testable:
        branches = tuple(replace(branch, spread=max(branch.spread, UNTESTED_LOG_SD)) for branch in branches)
        sd = np.full(count, UNTESTED_LOG_SD)
    scores = (np.log(sample.seconds) - logs) / sd
    spread = fit_local_spread(logs, scores) if testable else flat_spread()
    scores = np.sort(np.abs(scores) / (unseen_factors(logs, scores) if testable else 1.0))
    if not testable:
        scores = np.array([1.2816, 1.6449])  # normal quantiles of 80 and 90 %: there is nothing to measure them with
    elif count > _MOST_SCORES:
        scores = np.quantile(scores, np.arange(1, _MOST_SCORES + 1) / (_MOST_SCORES + 1))
    constants = fitted[0][0]
    model = KernelModel(
        branches=branches,
        shares=tuple(shares.tolist()),
        coverage=Coverage.of(sample.kernels, branches[0].roofline.seconds(sample.kernels), sd),
        z_scores=scores,
        names=sample.kernels.names,
        local_spread=spread,
    )
    report = RegressionReport(
        constants=constants,
        roofline_error=mean_error(fitted[0][1].roofline, sample.seconds),
        error=mean_error(logs, sample.seconds),
        own_error=mean_error(fitted[0][3], sample.seconds),
        log_spread=float(np.sqrt(np.mean((np.log(sample.seconds) - logs) ** 2))),
        process_share=branches[0].process_share,
        prior_share=0.0 if prior is None else float(shares[1]),
        notes=tuple(notes),
    )
    return model, report


def _blend(left_out: Sequence[Floats], seconds: Floats) -> Floats:
    """Weights of the own branch and, where there is one, of that over a prior, from their left-out ln seconds."""
    missed = np.sqrt(np.abs(np.array(left_out) - np.log(seconds)))
    errors = missed.mean(axis=1)
    if len(errors) > 1:
        errors[1] += _DOUBT * np.std(missed[1] - missed[0], ddof=1) / np.sqrt(len(seconds))
    errors = np.maximum(errors, 1e-2)
    weights = (errors / errors.min()) ** -_BLEND_POWER
    shares: Floats = weights / weights.sum()
    return shares


def _in_sample(sample: _Sample, branch: Branch) -> _LeftOut:
    """What stands for left-out predictions where there are too few kernels to leave any out."""
    zeros = np.zeros(len(sample.seconds))
    logs = np.log(branch.roofline.seconds(sample.kernels)) + branch.offset(sample.kernels)
    return _LeftOut(logs, zeros, zeros, np.full(len(zeros), UNTESTED_LOG_SD))
