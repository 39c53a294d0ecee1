"""How far two calibrations of one network lie apart: the same collective at common sizes and ranks. NumPy only.

A pair of curves agrees in collective, ranks, nodes, dtype and form, and in its environment where both networks have
that; where each has only one environment for it, the two are compared all the same and the change is said, because a
new version of NCCL is what one wants to see the effect of. Several jobs on one side are taken at their mean logarithm.

The ratio is the median over the common sizes of (second / first). Its 80 % interval holds the repeats of both curves,
which sizes share and more of them do not average away, and the scatter of the ratio over sizes, which they do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibration.link_series import LEAST_HALF
from calibration.link_values import NORMAL_80, CurveKey, LinkCalibration, LinkCurve


@dataclass(frozen=True)
class Drift:
    """One collective in two calibrations.

    Args:
        key: of the second, without its job.
        was: the first's environment.
        sizes: that both have.
        ratio: second / first, of time; lo, hi: its 80 % interval.
    """

    key: CurveKey
    was: str
    sizes: int
    ratio: float
    lo: float
    hi: float

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 1."""
        return not self.lo <= 1.0 <= self.hi


_ByEnvironment = dict[CurveKey, dict[str, list[LinkCurve]]]


def drift(first: LinkCalibration, second: LinkCalibration) -> tuple[Drift, ...]:
    """Every pair of curves with a common size, in the order of their keys."""
    before, after = _by_environment(first.curves), _by_environment(second.curves)
    found = []
    for place in sorted(set(before) & set(after)):
        for was, now in _pairs(before[place], after[place]):
            compared = _compared(before[place][was], after[place][now])
            if compared is not None:
                found.append(Drift(replace(place, environment=now), was, *compared))
    return tuple(found)


def _by_environment(curves: Iterable[LinkCurve]) -> _ByEnvironment:
    found: _ByEnvironment = defaultdict(lambda: defaultdict(list))
    for curve in curves:
        found[replace(curve.key, environment="", job="")][curve.key.environment].append(curve)
    return found


def _pairs(before: Mapping[str, object], after: Mapping[str, object]) -> list[tuple[str, str]]:
    """Which environment of the first belongs to which of the second."""
    common = sorted(set(before) & set(after))
    if not common and len(before) == len(after) == 1:
        return [(next(iter(before)), next(iter(after)))]
    return [(name, name) for name in common]


def _compared(first: Sequence[LinkCurve], second: Sequence[LinkCurve]) -> tuple[int, float, float, float] | None:
    """Common sizes, ratio and its interval; None without a common size."""
    before, after = _log_seconds(first), _log_seconds(second)
    sizes = sorted(set(before) & set(after))
    if not sizes:
        return None
    apart = np.array([after[size] - before[size] for size in sizes])
    noise = np.hypot(_half(first), _half(second))
    half = float(np.hypot(noise, NORMAL_80 * apart.std() / np.sqrt(len(sizes))))
    middle = float(np.median(apart))
    ratio, lo, hi = np.exp([middle, middle - half, middle + half])
    return len(sizes), float(ratio), float(lo), float(hi)


def _log_seconds(curves: Sequence[LinkCurve]) -> dict[float, float]:
    """Size -> mean ln(seconds) of the curves that have it."""
    logs: dict[float, list[float]] = defaultdict(list)
    for curve in curves:
        for size, seconds in zip(curve.sizes_bytes, curve.seconds, strict=True):
            logs[size].append(float(np.log(seconds)))
    return {size: float(np.mean(values)) for size, values in logs.items()}


def _half(curves: Sequence[LinkCurve]) -> float:
    """Half-width of what one side repeats to, in ln(seconds)."""
    return max(LEAST_HALF, NORMAL_80 * max(curve.repeat_log_sd or 0.0 for curve in curves))
