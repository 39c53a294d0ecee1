"""Read the curves of one environment at any size and number of ranks. NumPy only.

A *series* is the curves of one collective with the same number of ranks on each node (inside one node: all of them).
At a measured scale it is that curve, or the mean logarithm of several jobs' curves; elsewhere
`calibration.link_scaling`.

Half-widths are of 80 % intervals, in ln(seconds), and add in squares: the spread of the fabric's left-out sizes, 0.12
for every doubling beyond the measured sizes, the disagreement of jobs at one scale, and for scales that were not
measured 0.2 between two that were, 0.25 for every doubling beyond the largest where a law carries on, and 0.5 where
none can (laws were wrong by 12 to 22 % in the mean one and two doublings out, see `link_scaling`; the last scale
alone by 20 to 39 %). `benchmarks/collectives.py` measures what they cover.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibration.link_curves import DOUBT_PER_DOUBLING, Flags, read
from calibration.link_scaling import LEAST_SCALES, between_scales, joint_law, log_law, power_law
from calibration.link_values import NORMAL_80, LinkCurve, RankLaw, Spread
from oracle.estimate import Floats

LEAST_HALF = 0.03
"""The least half-width of an 80 % interval, in ln(seconds): what a single run repeats to at best."""

HALF_BETWEEN_SCALES = 0.2
HALF_PER_DOUBLING_BY_LAW = 0.25
HALF_PER_DOUBLING_FLAT = 0.5


@dataclass(frozen=True)
class Answer:
    """A series read at n sizes; shapes (n,).

    Args:
        log_s: ln(seconds).
        half_80, half_90: half-widths in ln(seconds).
        measured: this very size was measured at this very scale.
        extrapolated: outside the measured sizes or scales.
        alpha_s: of the empty message, for contention.
    """

    log_s: Floats
    half_80: Floats
    half_90: Floats
    measured: Flags
    extrapolated: Flags
    alpha_s: float


class LinkSeries:
    """The curves of one collective at several numbers of ranks.

    Args:
        curves: of one collective, environment and layout; one or more for each number of ranks.
        law: the joint law of the series, where there is one.
        spread: of the fabric.
    """

    def __init__(self, curves: Sequence[LinkCurve], law: RankLaw | None, spread: Spread) -> None:
        by_ranks: dict[int, list[LinkCurve]] = defaultdict(list)
        for curve in curves:
            by_ranks[curve.key.ranks].append(curve)
        self.scales = tuple(sorted(by_ranks))
        self.key = curves[0].key
        self._curves = [by_ranks[ranks] for ranks in self.scales]
        self._ranks = np.array(self.scales, dtype=np.float64)
        self._law = law
        self._spread = spread

    def read(self, ranks: int, sizes: Floats) -> Answer:
        """Read the series at `ranks` and n sizes in bytes."""
        if ranks in self.scales:
            return self._at_scale(self.scales.index(ranks), sizes)
        near = [self._at_scale(index, sizes) for index in range(len(self.scales))]
        closest = near[int(np.argmin(np.abs(np.log(self._ranks / ranks))))]
        log_s, extra, outside = self._elsewhere(np.array([answer.log_s for answer in near]), ranks, sizes)
        return Answer(
            log_s=log_s,
            half_80=np.hypot(closest.half_80, extra),
            half_90=np.hypot(closest.half_90, 1.2835 * extra),
            measured=np.zeros(len(sizes), dtype=np.bool_),
            extrapolated=closest.extrapolated | outside,
            alpha_s=closest.alpha_s,
        )

    def _at_scale(self, index: int, sizes: Floats) -> Answer:
        curves = self._curves[index]
        readings = [read(curve, sizes) for curve in curves]
        log_s = np.array([reading.log_s for reading in readings])
        doubt = np.mean([reading.doubt for reading in readings], axis=0)
        beyond = np.mean([reading.beyond for reading in readings], axis=0)
        jobs = NORMAL_80 * log_s.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(sizes))
        extra = np.hypot(DOUBT_PER_DOUBLING * beyond, jobs)
        return Answer(
            log_s=log_s.mean(axis=0),
            half_80=np.hypot(np.maximum(self._spread.half_80 * doubt, LEAST_HALF), extra),
            half_90=np.hypot(np.maximum(self._spread.half_90 * doubt, 1.2835 * LEAST_HALF), 1.2835 * extra),
            measured=np.all([np.isin(sizes, curve.sizes_bytes) for curve in curves], axis=0),
            extrapolated=np.any([reading.beyond > 0 for reading in readings], axis=0),
            alpha_s=min(piece.alpha_s for curve in curves for piece in curve.pieces),
        )

    def _elsewhere(self, log_s: Floats, ranks: int, sizes: Floats) -> tuple[Floats, float, bool]:
        """ln(seconds) at a scale that was not measured, the half-width this adds, whether it lies outside."""
        largest, smallest = self.scales[-1], self.scales[0]
        if smallest < ranks < largest:
            return between_scales(log_s, self._ranks, ranks), HALF_BETWEEN_SCALES, False
        doublings = abs(np.log2(ranks / (largest if ranks > largest else smallest)))
        if ranks > largest and self._law is not None and len(self.scales) >= LEAST_SCALES:
            nodes = np.full(len(sizes), ranks / self._law.ranks_per_node)
            joint = joint_law(self._law.collective, self._law.branches, np.full(len(sizes), float(ranks)), nodes, sizes)
            laws = [log_law(log_s, self._ranks, ranks), power_law(log_s, self._ranks, ranks), joint]
            return np.median(laws, axis=0), HALF_PER_DOUBLING_BY_LAW * doublings, True
        return between_scales(log_s, self._ranks, ranks), HALF_PER_DOUBLING_FLAT * doublings, True
