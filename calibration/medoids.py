"""Choose which shapes to measure: k-means medoids of those that will be asked for. NumPy only.

Spread over what will be asked, k-means medoids are worth about one and a half times as many random shapes, while
maximin and Sobol designs measure the corners, which nobody asks for, and are worse than random. The smallest (the
launch floor) and the largest kernel are always among them.

A few long kernels hold most of a step, and where shapes spread over decades an unweighted mean has hardly any of them.
So a candidate weighs its seconds to the power 0.3. With 200 of thousands of GPU kernels, on three seeds that chose
nothing, errors of sums of fifty matrix products fell from 3.8 to 2.9 % (twelve pairs of a family and a device) and
those of sums of convolutions rose from 2.8 to 3.0 %, while single products were missed by between 12 % less and 17 %
more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oracle.errors import OutOfRange
from oracle.estimate import Floats

_ROUNDS = 12
_MOST_CLUSTERED = 4000
_LEAST_SCALE = 0.15
_WEIGHT_POWER = 0.3


def choose_medoids(points: Floats, work: Floats, count: int, seed: int = 0) -> NDArray[np.intp]:
    """Choose `count` rows that stand for all of them.

    Args:
        points: log2 axes of the candidates, shape (n, k).
        work: a size of each candidate that grows as its seconds do, positive, shape (n,).
        count: how many to choose, 2 to n.
        seed: of the starting points.

    Returns:
        Sorted rows, shape (count,), all different.

    Raises:
        OutOfRange: fewer candidates than asked for.
    """
    if not 2 <= count <= len(points):
        raise OutOfRange(f"2 to {len(points)} of {len(points)} shapes can be chosen, not {count}")
    rng = np.random.default_rng(seed)
    ends = np.unique([np.argmin(work), np.argmax(work)])
    pool = np.setdiff1d(np.arange(len(points)), ends)
    if len(pool) > _MOST_CLUSTERED:
        pool = rng.choice(pool, _MOST_CLUSTERED, replace=False)
        pool = pool if len(pool) >= count - len(ends) else np.setdiff1d(np.arange(len(points)), ends)
    scaled = (points[pool] - points[pool].mean(axis=0)) / np.maximum(points[pool].std(axis=0), _LEAST_SCALE)
    wanted = count - len(ends)
    centres = _centres(scaled, work[pool] ** _WEIGHT_POWER, wanted, rng)
    return np.sort(np.concatenate([ends, pool[_nearest(scaled, centres)]]))


def _squares(points: Floats, centres: Floats) -> Floats:
    found: Floats = (points * points).sum(axis=1)[:, None] + (centres * centres).sum(axis=1) - 2 * points @ centres.T
    return np.maximum(found, 0.0)


def _centres(points: Floats, weights: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Weighted Lloyd's rounds from k-means++ starts (Arthur, Vassilvitskii, SODA 2007)."""
    if count == 0:
        return points[:0]
    chosen = [int(rng.choice(len(points), p=weights / weights.sum()))]
    away = _squares(points, points[chosen]).ravel()
    while len(chosen) < count:
        gain = away * weights if away.any() else weights
        chosen.append(int(rng.choice(len(points), p=gain / gain.sum())))
        away = np.minimum(away, _squares(points, points[chosen[-1:]]).ravel())
    centres = points[chosen].copy()
    for _ in range(_ROUNDS):
        owner = _squares(points, centres).argmin(axis=1)
        sums = np.zeros_like(centres)
        np.add.at(sums, owner, points * weights[:, None])
        sizes = np.bincount(owner, weights, minlength=count)
        filled = sizes > 0
        centres[filled] = sums[filled] / sizes[filled, None]
    return centres


def _nearest(points: Floats, centres: Floats) -> NDArray[np.intp]:
    """The point nearest to each centre that no earlier centre has taken."""
    distances = _squares(points, centres)
    taken = []
    for column in range(len(centres)):
        row = int(distances[:, column].argmin())
        taken.append(row)
        distances[row] = np.inf
    return np.array(taken, dtype=np.intp)
