"""Score a fit on shapes that it has not seen.

A random split flatters: the same layer at another batch size is nearly the same shape, and would sit on both sides.
So whole layers change sides, with all their batch sizes. Layers are dealt to the folds in order of their work, so
that every fold holds small and large ones; *everything* is fitted again in each fold, the choice of constants
included.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from oracle.estimate import Floats

FOLDS = 5
"""Folds of the cross-validation; fewer where there are fewer layers."""

Rows = NDArray[np.intp]


def folds(groups: Sequence[Hashable], order: Floats) -> list[Rows]:
    """The rows to leave out, fold by fold.

    Args:
        groups: one label per row; rows of one label stay together.
        order: a number per row (its work); groups are dealt in the order of their smallest.

    Returns:
        At most FOLDS arrays of row numbers that partition the rows; empty where there is only one group.

    >>> [rows.tolist() for rows in folds(["a", "b", "a"], np.array([1.0, 2.0, 3.0]))]
    [[0, 2], [1]]
    """
    dealt: dict[Hashable, int] = {}
    for row in np.argsort(order, kind="stable"):
        dealt.setdefault(groups[row], len(dealt) % FOLDS)
    if len(dealt) < 2:
        return []
    of_row = np.array([dealt[group] for group in groups])
    return [np.flatnonzero(of_row == fold) for fold in range(of_row.max() + 1)]
