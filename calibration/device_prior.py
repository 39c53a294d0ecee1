"""What other devices say of a kernel family: the residual over their own rooflines, learnt by trees and a process.

The constants of a device do not transfer, but what is left over them does to a good part: which alignments cost, what
an unfilled wave costs, when a library changes its algorithm. Parallel units and cache enter through tiles per unit
and bytes per cache. The new device's constants are then refitted with the prior as an offset and its own process
learns the rest. Sources must not hold the kernels that calibrate the new device (their rooflines are fitted here, on
all that they have).

The process knows a shape that several sources have measured better than the trees do, but it remembers few kernels. So
it weighs half, times the share of the sources' kernels that it remembers: a pool of thousands is the trees' alone.
Weights of the sources by how well each one's residual fits the new device's few kernels were tried, and gained nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibration.quantities import Quantities, join
from calibration.residual_fit import MOST_KEPT, fit_process, fit_trees
from calibration.roofline_fit import fit_roofline
from calibration.shared_residual import SharedResidual
from oracle.errors import BadInput
from oracle.estimate import Floats

MOST_KERNELS = 1000
"""Kernels taken from each source; more cost time and add little."""

_PROCESS_ROUNDS = 30
_PROCESS_SHARE = 0.5
_LEAST_PROCESS_SHARE = 0.1


def learn_prior(sources: Sequence[tuple[Quantities, Floats]]) -> SharedResidual:
    """Learn the residual that devices have in common.

    Args:
        sources: for each other device its kernels and their seconds.

    Raises:
        BadInput: no sources, or sources with other columns.
    """
    if not sources:
        raise BadInput("a prior needs at least one other device")
    kernels, residuals = [], []
    for table, seconds in sources:
        some = np.random.default_rng(0).permutation(len(table))[:MOST_KERNELS]
        part, times = table.take(some), seconds[some]
        roofline = fit_roofline(part, times).roofline
        residual = np.log(times / roofline.seconds(part))
        kernels.append(part)
        residuals.append(residual - np.median(residual))
    columns, targets = join(kernels).columns, np.concatenate(residuals)
    trees = fit_trees(columns, targets)
    share = _PROCESS_SHARE * min(1.0, MOST_KEPT / len(targets))
    if share < _LEAST_PROCESS_SHARE:
        return SharedResidual(trees)
    return SharedResidual(trees, fit_process(columns, targets, rounds=_PROCESS_ROUNDS), share)
