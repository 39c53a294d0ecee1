"""When enough samples are enough, and what a reader has to know of them. Pure: numbers in, words out.

The median is what a fit uses, so its interval decides. It is the distribution-free one by order statistics: of n
samples the k-th smallest and the k-th largest enclose the median with probability 1 - 2 P(B <= k - 1), B binomial with
p = 1/2 (David, Nagaraja, Order Statistics, 2003, section 7.1). Timings have long right tails and several modes; a
standard error would trust a normal shape that they do not have. It does trust that samples are independent: slow drift
shows only in other visits of the same case, hence the rounds of `profiler.run`.

Why the median and not the minimum. On a shared machine the minimum is the time without neighbours, which a benchmark
of compilers wants. A training step runs for minutes in the ordinary state of its machine: its kernels meet the clocks,
the caches and the neighbours that the samples met, and most of them take what most samples took. The minimum is also
the one statistic that goes on falling with the number of samples. What is no ordinary state (a visit in which something
else had the core, or in which the clocks were held back) is kept out by visits, not by samples: `calibration.repeats`
uses the clean visits of a case where it has any.

Why an interval does not become narrow. Where the target is missed, or could be missed later, the shape of the stream
says why:

- `throttled`: two levels in long runs, the fast one first. Clocks that are held back fall in a step and stay.
- `drifting`: a trend in time, or two levels in long runs with the slow one first (a neighbour that left).
- `bimodal`: two levels that alternate at random. Two algorithms, two placements of memory, two cores.
- `spiky`: rare samples far above the others. Interrupts; the median does not see them, a mean would.

Two levels are the split of ln(samples) with the least spread inside its halves (Otsu, 1979, on one axis), where the
levels lie far enough apart. The best split of one normal mode lies 2.6 of its spreads apart, of an exponential tail
3.5; few samples can look like more by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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
    """What a reader has to know of samples in the order in which they were taken.

    `noisy` (the interval is wider than the target), the shape of the stream (`throttled`, `bimodal` or `drifting`), and
    `spiky`; see above.

    >>> flags([1.0] * 20 + [1.5] * 20)
    ('noisy', 'throttled')
    """
    found = ["noisy"] if median_halfwidth(samples_s) > rule.target else []
    shape = _shape(samples_s, rule.target)
    return (*found, *([shape] if shape else []), *(["spiky"] if _spiky(samples_s) else []))


def _shape(samples_s: Sequence[float], target: float) -> str | None:
    """`throttled`, `bimodal` or `drifting`: what keeps samples apart; None where it is noise alone."""
    slow = _two_levels(samples_s, target)
    if slow is None:
        return "drifting" if _drifts(samples_s, target) else None
    if not _in_long_runs(slow):
        return "bimodal"
    return "drifting" if slow[0] else "throttled"


MIN_FOR_LEVELS = 20
"""Fewer samples of one mode look like two too often."""

LEAST_LEVEL = 0.15
"""The share of samples that makes a level: fewer are spikes, or a tail."""

LEVELS_APART, LEVELS_APART_OF_FEW = 4.5, 30.0
"""How many spreads apart two levels lie at least, and how much more times n it is with n samples: one mode (normal,
log-normal, uniform, Laplace, exponential) is taken for two in at most 2.5 % of streams of 20 samples, and in 0.3 % of
streams of 50; 10 and 3 % where the tail has no variance (Pareto, 1.5)."""


def _two_levels(samples_s: Sequence[float], target: float) -> list[bool] | None:
    """Which samples lie on the slower of two levels; None where there are no two levels."""
    count = len(samples_s)
    if count < MIN_FOR_LEVELS:
        return None
    logs = [math.log(sample) for sample in samples_s]
    split = _best_split(sorted(logs))
    least = math.ceil(LEAST_LEVEL * count)
    if split is None or not least <= split.below <= count - least:
        return None
    far = (LEVELS_APART + LEVELS_APART_OF_FEW / count) * split.spread
    if split.apart <= max(far, 2 * target):
        return None
    return [value > split.border for value in logs]


@dataclass(frozen=True)
class _Split:
    """Values below a border, the distance of the two means, and the standard deviation inside the halves."""

    below: int
    border: float
    apart: float
    spread: float


def _best_split(ordered: Sequence[float]) -> _Split | None:
    """The split of sorted values with the least spread inside its halves; None where all are equal."""
    count, centre = len(ordered), ordered[0]
    total = sum(value - centre for value in ordered)
    squares = sum((value - centre) ** 2 for value in ordered)
    best: _Split | None = None
    most, below_sum = 0.0, 0.0
    for below in range(1, count):
        below_sum += ordered[below - 1] - centre
        apart = (total - below_sum) / (count - below) - below_sum / below
        between = below * (count - below) / count * apart**2
        if between > most:
            most = between
            inside = max(squares - total**2 / count - between, 0.0)
            best = _Split(below, (ordered[below - 1] + ordered[below]) / 2, apart, math.sqrt(inside / count))
    return best


def _in_long_runs(slow: Sequence[bool]) -> bool:
    """Whether two levels follow one another in far fewer runs than chance makes (Wald, Wolfowitz, 1940; 3.3 sigma)."""
    count, above = len(slow), sum(slow)
    runs = 1 + sum(one != other for one, other in pairwise(slow))
    expected = 1 + 2 * above * (count - above) / count
    return runs < expected - 3.3 * math.sqrt((expected - 1) * (expected - 2) / (count - 1))


SPIKE = 1.5
"""A spike takes so many times the median, and lies ten quartile ranges above it."""

LEAST_SPIKES = 0.02


def _spiky(samples_s: Sequence[float]) -> bool:
    """Whether a few samples lie far above all others."""
    ordered = sorted(samples_s)
    count, middle = len(ordered), median(ordered)
    quartiles = ordered[(3 * count) // 4] - ordered[count // 4]
    spikes = sum(sample > max(SPIKE * middle, middle + 10 * quartiles) for sample in ordered)
    return LEAST_SPIKES * count <= spikes < LEAST_LEVEL * count and spikes > 0


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
