"""Fit one curve of time against message size: the Hockney model, and the lower envelope of affine pieces.

Times span six decades, so errors count relatively: ordinary least squares puts alpha wrong by factors while its R2
stays above 0.999. The Hockney model takes relative weights and non-negative constants. The envelope minimises a
soft-L1 loss (scale 0.05) of ln(envelope / t) over the logarithms of its constants, from starts that cut the sorted
sizes into runs and fit each by itself; soft-L1 because one stalled message must not move a protocol.

NCCL takes the fastest of its algorithms and protocols by its own model, so the envelope of affine pieces is the form
of the truth, and its pieces are protocols. How many there are is decided by the Bayesian information criterion for
Laplace errors, 2 n ln(mean |residual|) + PENALTY k ln(n), with a floor under the residual, for no clock is exact to
less. A piece costs more than its two constants, since where it lies is searched for as well; with 4 for each, 98 % of
simulated curves with 10 % noise get the right number (`benchmarks/link_recovery.py`), with 3 about 90 %. Where a log
names the algorithm of every size, nothing is searched: the names are the pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
from scipy.optimize import least_squares

from calibration.link_curves import envelope
from calibration.link_values import AffinePiece
from oracle.estimate import Floats

SOFT = 0.05
"""Residual in ln(seconds) at which the loss turns from squares to absolute values."""

MOST_PIECES = 4
"""NCCL has three protocols for each algorithm; a fourth piece is for a change of algorithm among them."""

PENALTY = 4.0
"""Constants that one more piece counts for: alpha, beta, where it begins and where it ends."""

RESIDUAL_FLOOR = 0.005
"""Mean residual in ln(seconds) below which a fit is as good as the clock."""

NOT_IDENTIFIED = 0.5
"""Standard error of a logarithm from which a constant counts as not identified."""

_CUTS = 12
_STARTS = 3


def relative_affine(sizes: Floats, seconds: Floats) -> tuple[float, float]:
    """Alpha (s) and s/byte, both non-negative, that minimise the sum of squared relative errors.

    >>> alpha, beta = relative_affine(np.array([0.0, 1e3, 1e6]), np.array([1e-5, 1.1e-5, 1.01e-3]))
    >>> round(alpha, 12), round(beta, 15)
    (1e-05, 1e-09)
    """
    ones, scaled = 1 / seconds, sizes / seconds
    a, b, c = float(ones @ ones), float(ones @ scaled), float(scaled @ scaled)
    d, e = float(ones.sum()), float(scaled.sum())
    determinant = a * c - b * b
    if determinant > 1e-12 * a * c:
        alpha, beta = (c * d - b * e) / determinant, (a * e - b * d) / determinant
        if alpha >= 0 and beta >= 0:
            return alpha, beta
    flat, steep = d / a, e / c
    flat_is_better = ((flat * ones - 1) ** 2).sum() <= ((steep * scaled - 1) ** 2).sum()
    return (flat, 0.0) if flat_is_better else (0.0, steep)


def alpha_beta(sizes: Floats, seconds: Floats) -> AffinePiece:
    """The Hockney model of a whole curve, relative weights, with the standard errors of its constants."""
    alpha, beta = relative_affine(sizes, seconds)
    return _with_errors([AffinePiece(alpha, beta)], sizes, seconds)[0]


def _loss(residuals: Floats) -> float:
    return float((np.sqrt(1 + (residuals / SOFT) ** 2) - 1).sum())


def _owners(logs: Floats, sizes: Floats) -> tuple[Floats, Floats, Floats]:
    """The envelope of pieces given by logarithms (k, 2): seconds, index of the lowest piece, its (alpha, beta)."""
    constants = np.exp(np.clip(logs.reshape(-1, 2), -80, 40))
    times = constants[:, 0] + np.outer(sizes, constants[:, 1])
    owner = times.argmin(axis=1)
    return times[np.arange(len(sizes)), owner], owner, constants[owner]


def refine(sizes: Floats, seconds: Floats, start: Floats) -> Floats:
    """The best envelope near `start`, positive (alpha, beta) of shape (k, 2); same shape, ordered by alpha."""
    log_s, rows = np.log(seconds), np.arange(len(sizes))

    def residuals(logs: Floats) -> Floats:
        lowest: Floats = np.log(_owners(logs, sizes)[0]) - log_s
        return lowest

    def jacobian(logs: Floats) -> Floats:
        times, owner, constants = _owners(logs, sizes)
        table = np.zeros((len(sizes), logs.size))
        table[rows, 2 * owner] = constants[:, 0] / times
        table[rows, 2 * owner + 1] = constants[:, 1] * sizes / times
        return table

    found = least_squares(residuals, np.log(start).ravel(), jac=jacobian, loss="soft_l1", f_scale=SOFT, max_nfev=60)
    constants = np.exp(np.clip(found.x.reshape(-1, 2), -80, 40))
    ordered: Floats = constants[np.argsort(constants[:, 0])]
    return ordered


def _starts(sizes: Floats, seconds: Floats, count: int) -> list[Floats]:
    """The best few cuts of the sizes into `count` runs, each run fitted by itself."""
    places = np.arange(2, len(sizes) - 1)
    if len(places) > _CUTS:
        places = np.unique(np.linspace(2, len(sizes) - 2, _CUTS).round().astype(int))
    least = np.array([seconds.min(), (seconds / sizes).min()]) * 1e-3
    found: list[tuple[float, Floats]] = []
    for cuts in combinations(places, count - 1):
        edges = [0, *map(int, cuts), len(sizes)]
        runs = [slice(a, b) for a, b in pairwise(edges)]
        if min(np.diff(edges)) < 2:
            continue
        pieces = np.maximum([relative_affine(sizes[run], seconds[run]) for run in runs], least)
        found.append((_loss(np.log(envelope(pieces[:, 0], pieces[:, 1], sizes) / seconds)), pieces))
    found.sort(key=lambda item: item[0])
    return [pieces for _, pieces in found[:_STARTS]]


def fit_envelope(sizes: Floats, seconds: Floats, count: int) -> Floats | None:
    """The best envelope of `count` pieces, shape (count, 2); None where the sizes cannot be cut so often."""
    fitted = [refine(sizes, seconds, start) for start in _starts(sizes, seconds, count)]
    return min(fitted, key=lambda pieces: _loss(_residuals(pieces, sizes, seconds)), default=None)


def _residuals(pieces: Floats, sizes: Floats, seconds: Floats) -> Floats:
    misses: Floats = np.log(envelope(pieces[:, 0], pieces[:, 1], sizes) / seconds)
    return misses


def evidence(pieces: Floats, sizes: Floats, seconds: Floats) -> float:
    """The information criterion of an envelope; the lowest is the best supported."""
    count = len(sizes)
    scale = max(float(np.abs(_residuals(pieces, sizes, seconds)).mean()), RESIDUAL_FLOOR)
    return 2 * count * float(np.log(scale)) + PENALTY * len(pieces) * float(np.log(count))


def choose_pieces(sizes: Floats, seconds: Floats, most: int = MOST_PIECES) -> tuple[AffinePiece, ...]:
    """The envelope whose number of pieces the measurements support, at least two sizes for each piece and one more.

    Args:
        sizes: in bytes, ascending, shape (n,).
        seconds: the time of each, shape (n,).
        most: pieces at most.
    """
    most = max(1, min(most, (len(sizes) - 1) // 2))
    fitted = [pieces for k in range(1, most + 1) if (pieces := fit_envelope(sizes, seconds, k)) is not None]
    if not fitted:
        return (alpha_beta(sizes, seconds),)
    best = min(fitted, key=lambda pieces: evidence(pieces, sizes, seconds))
    used = np.unique(_owners(np.log(best), sizes)[1])
    return _with_errors([AffinePiece(float(a), float(b)) for a, b in best[used]], sizes, seconds)


def labelled_pieces(sizes: Floats, seconds: Floats, labels: Sequence[str]) -> tuple[AffinePiece, ...]:
    """One piece for each algorithm and protocol that a log names for at least two sizes."""
    counts = Counter(labels)
    names = [name for name in dict.fromkeys(labels) if counts[name] > 1]
    pieces = []
    for name in names:
        own = np.array([label == name for label in labels])
        alpha, beta = relative_affine(sizes[own], seconds[own])
        piece = _with_errors([AffinePiece(alpha, beta)], sizes[own], seconds[own])[0]
        pieces.append(replace(piece, label=name))
    return tuple(sorted(pieces, key=lambda piece: piece.alpha_s))


def _with_errors(pieces: Sequence[AffinePiece], sizes: Floats, seconds: Floats) -> tuple[AffinePiece, ...]:
    """The pieces with standard errors of ln(alpha) and ln(beta), each from the sizes at which it is the lowest."""
    constants = np.array([[piece.alpha_s, piece.s_per_byte] for piece in pieces])
    owner = (constants[:, 0] + np.outer(sizes, constants[:, 1])).argmin(axis=1)
    told = []
    for index, piece in enumerate(pieces):
        own = owner == index
        alpha_sd, beta_sd = _errors(constants[index], sizes[own], seconds[own])
        told.append(replace(piece, alpha_log_sd=alpha_sd, beta_log_sd=beta_sd))
    return tuple(told)


def _errors(constants: Floats, sizes: Floats, seconds: Floats) -> tuple[float | None, float | None]:
    terms = np.column_stack([np.full(len(sizes), constants[0]), constants[1] * sizes])
    if len(sizes) < 3 or not terms.all():
        return None, None
    times = terms.sum(axis=1)
    table = terms / times[:, None]
    gram = table.T @ table
    if np.linalg.eigvalsh(gram)[0] < 1e-9:
        return None, None
    variance = float(np.square(np.log(times / seconds)).sum()) / (len(sizes) - 2)
    spread = np.sqrt(np.diag(np.linalg.inv(gram)) * variance)
    alpha_sd, beta_sd = (float(sd) if sd < NOT_IDENTIFIED else None for sd in spread)
    return alpha_sd, beta_sd
