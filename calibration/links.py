"""Fit the network half of a calibration: collective curves, laws in ranks, contention, and their spread.

Each (collective, ranks, nodes, dtype, environment, job) is a curve of its own (`calibration.link_values`). Its
size-wise fit is in `link_pieces`, its reading in `link_curves`, its growth with ranks in `link_scaling`.

Intervals come from sizes that were left out. Every size but the two ends is left out once (at most ten folds), the
rest is fitted again with the same number of pieces, and ln(measured / predicted) is divided by the reading's own
doubt. The quantiles of these ratios are pooled over the fabric: a curve alone has too few, and fabrics differ.
Leaving a size out doubles the gap around it, so the ratios are a little too large for a size that merely was not
measured; `CARRY_OVER` scales them. It was measured once over all fabrics and is no constant of any of them. A single
run repeats to a few percent at best, so no interval is narrower than `link_series.LEAST_HALF`.

Interpolation reproduces noise where sizes are dense, smoothing misses protocols where they are sparse. Leaving out
tells the two apart only where neighbours are close, so a curve may be marked `smooth` only if its sizes lie within a
factor of two of one another in the median.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from calibration.link_curves import arrays, combined, doubt, inside_readings, read
from calibration.link_overlap import fit_overheads
from calibration.link_pieces import alpha_beta, choose_pieces, labelled_pieces, refine
from calibration.link_rank_fit import fit_rank_laws
from calibration.link_rows import FEW_SIZES, LinkRow, Series, gather
from calibration.link_values import (
    ASSUMED_SPREAD,
    AffinePiece,
    Contention,
    CurveKey,
    LinkCalibration,
    LinkCurve,
    Measured,
    Spread,
)
from oracle.errors import BadInput
from oracle.estimate import Floats

CARRY_OVER = 0.9
"""How far an unmeasured size lies from its curve, as a share of how far a size lay that was left out of the fit."""

LEAST_RESIDUALS = 10
"""With fewer left-out sizes in a fabric its spread is assumed."""

_FOLDS = 10
_DENSE = 1.0
"""Doublings between neighbours, in the median, up to which leaving out can tell noise from protocols."""
_DENSE_SIZES = 8
_BANDWIDTH_BOUND = 4.0
"""Times of more than so many alphas show what bandwidth a group is left with."""


@dataclass(frozen=True)
class LeftOut:
    """What a curve said of sizes that were left out of it; shapes (3, n) and (n,)."""

    readings: Floats
    log_s: Floats


def fit_links(rows: Iterable[LinkRow], name: str, fabric: str) -> LinkCalibration:
    """Fit everything that the rows of one fabric can tell.

    Args:
        rows: collectives of one kind of device and network; environments and jobs are kept apart by their keys.
        name: of the calibration.
        fabric: the devices and links, in words.

    Raises:
        BadInput: no rows, or no key with two sizes.
    """
    gathered, notes = gather(rows)
    curves: list[LinkCurve] = []
    ratios: list[Floats] = []
    for (_, concurrent), series in gathered.items():
        if concurrent > 1:
            continue
        if len(series.sizes) < 2:
            notes.append(f"{series.key.text}: one size alone is no curve; left out")
            continue
        curve, misses = fit_curve(series)
        curves.append(curve)
        ratios.append(misses)
    if not curves:
        raise BadInput(f"calibration '{name}' of {fabric}: no collective was measured at two sizes or more")
    curves.sort(key=lambda curve: curve.key)
    return LinkCalibration(
        name=name,
        fabric=fabric,
        curves=tuple(curves),
        laws=fit_rank_laws(curves),
        contention=fit_contention(gathered, curves),
        spread=pooled_spread(np.concatenate(ratios)),
        notes=tuple(notes),
        overheads=fit_overheads(curves),
    )


def fit_curve(series: Series) -> tuple[LinkCurve, Floats]:
    """One curve, and |ln(measured / predicted)| in units of doubt of the sizes that were left out."""
    sizes, seconds = series.sizes, series.seconds
    pieces = _pieces(series)
    left_out = leave_sizes_out(sizes, seconds, pieces)
    smooth = left_out is not None and _smooth(sizes, left_out)
    error, ratios = None, np.array([])
    if left_out is not None:
        misses = combined(left_out.readings, smooth=smooth) - left_out.log_s
        error = float(np.abs(np.expm1(misses)).mean())
        ratios = np.abs(misses) / doubt(left_out.readings)
    curve = LinkCurve(
        key=series.key,
        sizes_bytes=tuple(map(float, sizes)),
        seconds=tuple(map(float, seconds)),
        alpha_beta=alpha_beta(sizes, seconds),
        pieces=pieces,
        smooth=smooth,
        held_out_error=error,
        repeat_log_sd=series.repeat_log_sd,
        rank_ratio=series.rank_ratio,
    )
    return curve, ratios


def _pieces(series: Series) -> tuple[AffinePiece, ...]:
    named = labelled_pieces(series.sizes, series.seconds, series.labels) if all(series.labels) else ()
    return named or choose_pieces(series.sizes, series.seconds)


def leave_sizes_out(sizes: Floats, seconds: Floats, pieces: tuple[AffinePiece, ...]) -> LeftOut | None:
    """Read every size but the two ends from a fit without it; None where there are too few sizes."""
    if len(sizes) < FEW_SIZES:
        return None
    inner = np.arange(len(sizes) - 2) % min(len(sizes) - 2, _FOLDS)
    folds = np.concatenate([[-1], inner, [-1]])
    start = np.maximum(np.column_stack(arrays(pieces)), [seconds.min() * 1e-3, (seconds / sizes).min() * 1e-3])
    readings = np.empty((3, len(sizes)))
    for fold in np.unique(inner):
        kept = folds != fold
        again = refine(sizes[kept], seconds[kept], start)
        readings[:, ~kept] = inside_readings(sizes[kept], seconds[kept], (again[:, 0], again[:, 1]), sizes[~kept])
    return LeftOut(readings[:, 1:-1], np.log(seconds[1:-1]))


def _smooth(sizes: Floats, left_out: LeftOut) -> bool:
    """Whether the envelope alone foretold the left-out sizes better, where they lie close enough to tell."""
    if len(sizes) < _DENSE_SIZES or float(np.median(np.diff(np.log2(sizes)))) > _DENSE:
        return False
    alone, median = (np.abs(combined(left_out.readings, smooth=s) - left_out.log_s).mean() for s in (True, False))
    return bool(alone < median)


def pooled_spread(ratios: Floats) -> Spread:
    """The half-widths that a fabric's left-out sizes ask for, in units of doubt (quantiles as in split conformal)."""
    count = len(ratios)
    if count < LEAST_RESIDUALS:
        return ASSUMED_SPREAD
    levels = np.minimum(np.array([0.8, 0.9]) * (count + 1) / count, 1.0)
    half_80, half_90 = np.maximum(CARRY_OVER * np.quantile(ratios, levels), 1e-6)
    return Spread(float(half_80), float(half_90), count)


def fit_contention(gathered: dict[tuple[CurveKey, int], Series], curves: Sequence[LinkCurve]) -> tuple[Contention, ...]:
    """Factors on the bandwidth-bound part of a curve, from the keys that were measured alone and in company."""
    alone = {curve.key: curve for curve in curves}
    found: dict[tuple[bool, int], list[float]] = defaultdict(list)
    for (key, concurrent), series in gathered.items():
        if concurrent > 1 and key in alone:
            found[(key.nodes > 1, concurrent)].extend(_stretch(alone[key], series))
    return tuple(_contention(*where, factors) for where, factors in sorted(found.items()) if factors)


def _contention(between: bool, concurrent: int, factors: Sequence[float]) -> Contention:
    """No group gets faster in company: what says so is noise."""
    measured = Measured.of([max(1.0, factor) for factor in factors])
    return Contention(between, concurrent, measured.value, measured.lo, measured.hi)


def _stretch(alone: LinkCurve, company: Series) -> list[float]:
    """(t - alpha) in company over (t - alpha) alone, at the common sizes where alpha hardly counts."""
    alpha = min(piece.alpha_s for piece in alone.pieces)
    inside = (company.sizes >= alone.sizes_bytes[0]) & (company.sizes <= alone.sizes_bytes[-1])
    base = np.exp(read(alone, company.sizes[inside]).log_s)
    bound = base > _BANDWIDTH_BOUND * alpha
    return [float(value) for value in (company.seconds[inside] - alpha)[bound] / (base - alpha)[bound]]
