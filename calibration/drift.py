"""How fast the machine was at every moment of a run, from its anchors; and measurements with that divided out.

What is estimated. Every anchor (`profiler.anchors`) is measured again and again. At one moment, ln(seconds) of an
anchor less its own median over the run is what the machine did at that moment, plus noise of that anchor; the median
over the anchors of the moment keeps what they have in common, and one wild kernel among three does not move it.

What is divided out. Only what lasts: a machine whose speed changes from second to second says nothing, ten seconds
later, of the kernel that is measured then, and dividing by its anchors would add their scatter to everybody's. So the
moments are taken for samples of a slow process in white noise, with the covariance s^2 exp(-|t| / L) (an
Ornstein-Uhlenbeck process: Rasmussen, Williams, Gaussian Processes, 2006, section 4.2.1), and the expected process
between them is divided out. L and the share of noise are those of the largest likelihood; the noise is at least what
the anchors of one moment disagree by. Where the likelihood without any slow process is not clearly less, nothing is
divided out. Far from every anchor the expected process falls back to the middle of the run.

The middle of the run, and not its best moment, is the reference: steps see the ordinary state of a machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import combinations

import numpy as np

from oracle.errors import BadInput
from oracle.estimate import Floats
from profiler.anchors import ANCHOR
from profiler.measurement import Measurement

LEAST_MOMENTS = 5
"""Visits of the anchors below which nothing is said of the time between them."""

CLEARLY = 3.0
"""How much ln(likelihood) a slow process must gain: two parameters gain 3 by chance in one of twenty runs."""

WORTH_SAYING = 0.02
"""A move of the machine that is worth a note."""

_NOISE_SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_LENGTHS = 12
_WILD = 4.0
"""Moments further from their neighbours than so many spreads are pulled in: a moment's stall is no drift."""


@dataclass(frozen=True, eq=False)
class MachineSpeed:
    """ln(slowness) of a machine over time: 0 in the middle of the run, 0.1 where everything takes 10 % longer.

    Args:
        moments_s: seconds since 1970 of the anchors' visits, shape (n,); none where nothing lasting was seen.
        weights: what each moment contributes, shape (n,).
        length_s: how long a state of the machine lasts.
        noise_sd: of ln(seconds) of one moment, beside the slow process.
    """

    moments_s: Floats
    weights: Floats
    length_s: float
    noise_sd: float

    def log_slowness(self, taken_at: Sequence[str]) -> Floats:
        """ln(seconds at that moment / seconds in the middle of the run), shape (n,).

        Args:
            taken_at: moments; UTC, ISO 8601.
        """
        asked = _seconds(taken_at)
        found: Floats = np.exp(-np.abs(asked[:, None] - self.moments_s) / self.length_s) @ self.weights
        return found

    @property
    def moved(self) -> float:
        """By which share the slowest moment was slower than the fastest; 0 where nothing lasting was seen."""
        if not len(self.moments_s):
            return 0.0
        curve = np.exp(-np.abs(self.moments_s[:, None] - self.moments_s) / self.length_s) @ self.weights
        return float(np.expm1(np.ptp(curve)))


def machine_speed(measurements: Iterable[Measurement]) -> MachineSpeed:
    """Estimate the speed of a machine over time from the anchors among measurements.

    Args:
        measurements: of one device, in any order; those without the flag `anchor` are passed over.

    >>> machine_speed([]).moved
    0.0
    """
    moments = _moments(measurements)
    if len(moments) < LEAST_MOMENTS:
        return _steady(0.0)
    at_s = np.array([moment[0] for moment in moments])
    middles = np.array([float(np.median(list(moment[1].values()))) for moment in moments])
    least_noise = _disagreement([list(moment[1].values()) for moment in moments])
    return _slow_process(at_s, _pulled_in(middles - np.median(middles)), least_noise)


def steadied(measurements: Sequence[Measurement]) -> tuple[list[Measurement], tuple[str, ...]]:
    """Measurements with the machine's slow moves divided out, and what has to be said of that.

    Args:
        measurements: of one device, in any order.
    """
    speed = machine_speed(measurements)
    if not len(speed.moments_s):
        return list(measurements), ()
    shifts = speed.log_slowness([measurement.taken_at for measurement in measurements])
    scaled = [
        replace(measurement, device_s=tuple(sample * math.exp(-shift) for sample in measurement.device_s))
        for measurement, shift in zip(measurements, shifts, strict=True)
    ]
    if speed.moved < WORTH_SAYING:
        return scaled, ()
    said = (
        f"the machine's speed moved by {speed.moved:.0%} during the run, by {len(speed.moments_s)} visits of its "
        "anchors; divided out"
    )
    return scaled, (said,)


@dataclass(frozen=True)
class Tie:
    """How much longer the same kernels take in a second set of measurements than in a first.

    Args:
        factor: second / first, the median over the anchors that both have.
        log_sd: standard deviation of its logarithm.
        anchors: how many they have in common.
    """

    factor: float
    log_sd: float
    anchors: int


def tie(first: Iterable[Measurement], second: Iterable[Measurement]) -> Tie:
    """Tie two moments or two runs of the same device by the anchors that were measured in both.

    Args:
        first: measurements with anchors, such as those of a calibration.
        second: measurements with the same anchors, such as those between the steps of a benchmark.

    Raises:
        BadInput: they have no anchor in common.
    """
    logs = [_anchor_logs(measurements) for measurements in (first, second)]
    shared = sorted(logs[0].keys() & logs[1].keys())
    if not shared:
        raise BadInput("the measurements have no anchor in common; choose_anchors gives the ones to measure")
    ratios = np.array([np.median(logs[1][key]) - np.median(logs[0][key]) for key in shared])
    # Each side's own scatter over its visits, and what the anchors disagree by.
    visits_var = [np.var(values) / len(values) for side in logs for key, values in side.items() if key in shared]
    between_var = float(np.var(ratios, ddof=1)) if len(ratios) > 1 else 0.0
    log_sd = math.sqrt(max(between_var, 2 * float(np.mean(visits_var))) / len(ratios))
    return Tie(float(np.exp(np.median(ratios))), log_sd, len(shared))


def _anchor_logs(measurements: Iterable[Measurement]) -> dict[str, list[float]]:
    """ln(median seconds) of every visit of every anchor."""
    found: dict[str, list[float]] = {}
    for measurement in measurements:
        if ANCHOR in measurement.flags:
            found.setdefault(measurement.case_key, []).append(math.log(measurement.median_s))
    return found


def _seconds(taken_at: Sequence[str]) -> Floats:
    return np.array([datetime.fromisoformat(text).timestamp() for text in taken_at])


def _moments(measurements: Iterable[Measurement]) -> list[tuple[float, dict[str, float]]]:
    """Each visit of the anchors: when, and ln(seconds) of every anchor less its median over the run."""
    anchors = sorted((item for item in measurements if ANCHOR in item.flags), key=lambda item: item.taken_at)
    middles = {key: float(np.median(logs)) for key, logs in _anchor_logs(anchors).items()}
    moments: list[tuple[list[float], dict[str, float]]] = []
    for anchor, at_s in zip(anchors, _seconds([item.taken_at for item in anchors]), strict=True):
        if not moments or anchor.case_key in moments[-1][1]:
            moments.append(([], {}))
        moments[-1][0].append(float(at_s))
        moments[-1][1][anchor.case_key] = math.log(anchor.median_s) - middles[anchor.case_key]
    return [(float(np.mean(when)), logs) for when, logs in moments]


def _disagreement(moments: Sequence[Sequence[float]]) -> float:
    """Standard deviation of a moment's median from what its anchors disagree by; 0 where there is one anchor."""
    gaps = [abs(a - b) for logs in moments for a, b in combinations(logs, 2)]
    if not gaps:
        return 0.0
    # |a - b| of two normal values has the median 0.954 sd; the median of n has 1.2533 sd / sqrt(n).
    anchors = float(np.median([len(logs) for logs in moments]))
    return float(np.median(gaps)) / 0.954 * 1.2533 / math.sqrt(anchors)


def _pulled_in(values: Floats) -> Floats:
    """Values with those that stand far from both neighbours pulled in."""
    padded = np.pad(values, 1, mode="edge")
    local = np.median([padded[:-2], padded[1:-1], padded[2:]], axis=0)
    away = values - local
    spread = 1.4826 * float(np.median(np.abs(away[away != 0]))) if (away != 0).any() else 0.0
    found: Floats = local + np.clip(away, -_WILD * spread, _WILD * spread)
    return found


def _steady(noise_sd: float) -> MachineSpeed:
    return MachineSpeed(np.empty(0), np.empty(0), 1.0, noise_sd)


def _slow_process(at_s: Floats, values: Floats, least_noise: float) -> MachineSpeed:
    """The slow process of the largest likelihood, or none where noise alone explains the values as well."""
    count = len(values)
    noise_alone = max(float(np.mean(values**2)), least_noise**2, 1e-12)
    nothing = -0.5 * (float(values @ values) / noise_alone + count * math.log(noise_alone))
    best, found = nothing + CLEARLY, _steady(math.sqrt(noise_alone))
    gaps = np.abs(at_s[:, None] - at_s)
    shortest = max(float(np.median(np.diff(at_s))), 1e-3)
    for length_s in np.geomspace(shortest, max(2 * shortest, gaps.max()), _LENGTHS):
        kernel = np.exp(-gaps / length_s)
        for share in _NOISE_SHARES:
            factor = np.linalg.cholesky(kernel + share * np.eye(count))
            white = np.linalg.solve(factor, values)
            variance = max(float(np.mean(white**2)), least_noise**2 / share, 1e-12)
            log_det = 2 * float(np.log(np.diag(factor)).sum())
            likelihood = -0.5 * (float(white @ white) / variance + count * math.log(variance) + log_det)
            if likelihood > best:
                weights = np.linalg.solve(factor.T, white)
                best, found = likelihood, MachineSpeed(at_s, weights, float(length_s), math.sqrt(share * variance))
    return found
