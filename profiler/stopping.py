"""When enough samples are enough, and what a reader has to know of them. Pure: numbers in, words out.

The median is what a fit uses, so its interval decides. It is the distribution-free one by order statistics: of n
samples the k-th smallest and the k-th largest enclose the median with probability 1 - 2 P(B <= k - 1), B binomial with
p = 1/2 (David, Nagaraja, Order Statistics, 2003, section 7.1). Timings have long right tails and several modes; a
standard error would trust a normal shape that they do not have. It does trust that samples are independent: slow drift
shows only in other visits of the same case, hence the rounds of `profiler.run`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LEVEL = 0.95


@dataclass(frozen=True)
class StoppingRule:
    """When to end one visit of a case.

    Args:
        target: half the width of the median's interval, as a share of the median.
        min_samples: never fewer; the median of fewer than six has no interval.
        max_samples: never more.
        max_s: no further sample once this time has been measured.
    """

    target: float = 0.02
    min_samples: int = 6
    max_samples: int = 100
    max_s: float = 0.5


def decide(samples_s: Sequence[float], elapsed_s: float, rule: StoppingRule = StoppingRule()) -> str | None:
    """Which rule ends the sampling now, if any: `converged`, `time` or `samples`.

    Args:
        samples_s: raw samples so far, in order, in seconds.
        elapsed_s: time measured so far.
        rule: the limits.

    >>> decide([1.0] * 6, elapsed_s=0.1), decide([1.0, 2.0] * 3, elapsed_s=0.1)
    ('converged', None)
    """
    if len(samples_s) < rule.min_samples:
        return None
    if median_halfwidth(samples_s) <= rule.target:
        return "converged"
    if elapsed_s >= rule.max_s:
        return "time"
    return "samples" if len(samples_s) >= rule.max_samples else None


def median_halfwidth(samples_s: Sequence[float]) -> float:
    """Half the width of the median's 95 % interval, as a share of the median; infinite below six samples."""
    ordered = sorted(samples_s)
    rank = interval_rank(len(ordered))
    if not rank:
        return math.inf
    return (ordered[-rank] - ordered[rank - 1]) / (2 * median(ordered))


def interval_rank(count: int) -> int:
    """The largest k for which the k-th smallest and largest of `count` samples enclose the median at LEVEL; 0: none.

    >>> [interval_rank(n) for n in (5, 6, 9, 20)]
    [0, 1, 2, 6]
    """
    tail, rank = 0.0, 0
    while rank < count // 2:
        tail += math.comb(count, rank) / 2.0**count
        if 2 * tail > 1 - LEVEL:
            break
        rank += 1
    return rank


def flags(samples_s: Sequence[float], rule: StoppingRule = StoppingRule()) -> tuple[str, ...]:
    """What a reader has to know: `noisy` (the interval is wider than the target), `drifting` (a trend in time)."""
    found = {"noisy": median_halfwidth(samples_s) > rule.target, "drifting": _drifts(samples_s, rule.target)}
    return tuple(name for name, holds in found.items() if holds)


MIN_FOR_DRIFT = 9
"""Fewer samples show no trend at the level that is asked."""


def _drifts(samples_s: Sequence[float], target: float) -> bool:
    """Whether later samples differ: a rank correlation with time beyond 3.3 sigma, and a change beyond the target.

    Spearman's rho of n independent samples has the standard deviation 1 / sqrt(n - 1); 3.3 sigma is one in a thousand.
    """
    count = len(samples_s)
    if count < MIN_FOR_DRIFT:
        return False
    third = count // 3
    change = abs(median(samples_s[-third:]) / median(samples_s[:third]) - 1)
    return change > target and abs(_rank_correlation(samples_s)) * math.sqrt(count - 1) > 3.3


def _rank_correlation(samples_s: Sequence[float]) -> float:
    """Spearman's rank correlation of the samples with their order; 0 where all are equal."""
    ranks = _ranks(samples_s)
    centre = (len(ranks) - 1) / 2
    spread = sum((rank - centre) ** 2 for rank in ranks)
    order = sum((index - centre) ** 2 for index in range(len(ranks)))
    shared = sum((index - centre) * (rank - centre) for index, rank in enumerate(ranks))
    return shared / math.sqrt(spread * order) if spread else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0; equal values share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for position in order[start:end]:
            ranks[position] = (start + end - 1) / 2
        start = end
    return ranks
