"""Fit the joint law over sizes and ranks of a series between nodes (see `calibration.link_scaling`).

The least of two or three algorithms with non-negative constants is no convex problem: soft-L1 (scale 0.1, for fabrics
under load scatter more than one curve does) over the logarithms of the constants, from a start that splits the rows
by message size and from seeded variations of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from calibration.link_scaling import LEAST_SCALES, SHAPES, branch_terms
from calibration.link_values import Branch, CurveKey, LinkCurve, RankLaw
from oracle.estimate import Floats

_SOFT = 0.1
_STARTS = 12
_BOUND = 60.0

SeriesKey = tuple[str, str, str, int, str]


def series_key(key: CurveKey) -> SeriesKey:
    """What curves of one series share: collective, dtype, environment, ranks per node, form."""
    return (key.collective, key.dtype, key.environment, key.ranks_per_node, key.form)


def fit_rank_laws(curves: Sequence[LinkCurve]) -> tuple[RankLaw, ...]:
    """The joint law of every series with enough scales between nodes."""
    by_series: dict[SeriesKey, list[LinkCurve]] = defaultdict(list)
    for curve in curves:
        key = curve.key
        if key.nodes > 1 and key.ranks_per_node and key.collective in SHAPES:
            by_series[series_key(key)].append(curve)
    enough = {key: own for key, own in by_series.items() if len({c.key.ranks for c in own}) >= LEAST_SCALES}
    return tuple(_fit(key, own) for key, own in enough.items())


def _fit(key: SeriesKey, curves: Sequence[LinkCurve]) -> RankLaw:
    collective, dtype, environment, ranks_per_node, form = key
    counts = [len(curve.sizes_bytes) for curve in curves]
    ranks = np.repeat([float(curve.key.ranks) for curve in curves], counts)
    sizes = np.concatenate([curve.sizes_bytes for curve in curves])
    seconds = np.concatenate([curve.seconds for curve in curves])
    terms = branch_terms(collective, ranks, ranks / ranks_per_node, sizes)
    constants = fit_branches(terms, seconds)
    names = [name for name, _, _ in SHAPES[collective]]
    branches = tuple(Branch(name, *map(float, row)) for name, row in zip(names, constants, strict=True))
    scales = tuple(sorted({curve.key.ranks for curve in curves}))
    return RankLaw(collective, dtype, environment, ranks_per_node, branches, scales, form)


def fit_branches(terms: Floats, seconds: Floats) -> Floats:
    """Constants (b, 3) of the least of b branches.

    Args:
        terms: what the constants multiply, shape (b, 3, n) (`branch_terms`).
        seconds: shape (n,).
    """
    log_s, rows = np.log(seconds), np.arange(len(seconds))
    count = len(terms)

    def owners(logs: Floats) -> tuple[Floats, Floats, Floats]:
        constants = np.exp(logs.reshape(count, 3))
        times = np.einsum("bk,bkn->bn", constants, terms)
        owner = times.argmin(axis=0)
        return times[owner, rows], owner, constants

    def residuals(logs: Floats) -> Floats:
        misses: Floats = np.log(owners(logs)[0]) - log_s
        return misses

    def jacobian(logs: Floats) -> Floats:
        times, owner, constants = owners(logs)
        table = np.zeros((len(rows), 3 * count))
        for k in range(3):
            table[rows, 3 * owner + k] = constants[owner, k] * terms[owner, k, rows] / times
        return table

    found = [
        least_squares(
            residuals,
            start,
            jac=jacobian,
            bounds=(-_BOUND, _BOUND),
            loss="soft_l1",
            f_scale=_SOFT,
            max_nfev=200,
        )
        for start in _start_points(terms, seconds)
    ]
    best = min(found, key=lambda result: float(result.cost))
    constants: Floats = np.exp(best.x.reshape(count, 3))
    return constants


def _start_points(terms: Floats, seconds: Floats) -> list[Floats]:
    """Starts in which the first branch owns the large messages, the last the small ones, and variations of them."""
    rng = np.random.default_rng(0)
    count = len(terms)
    rounds = np.maximum(terms[:, 1], 1e-9)
    least = np.array([seconds.min(), float((seconds / rounds.max(axis=0)).min()), float((seconds / terms[0, 2]).min())])
    climb = np.arange(count - 1.0, -1.0, -1.0)[:, None] * np.log([3.0, 2.0, 0.5])
    base: Floats = (np.log(0.5 * least) + climb).ravel()
    return [base, *(base + rng.standard_normal(base.size) for _ in range(_STARTS - 1))]
