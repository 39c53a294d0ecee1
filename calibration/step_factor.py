"""What a training step makes of its kernels: a factor for forward, backward and update, from canary steps.

A canary's step (`profiler.steps.canaries`) over the sum of its own kernels' prices says how much longer the kernels of
this machine take inside a step, with all that a step does beside them. What three unlike networks have in common is
taken for the machine's: the factor of a part is the geometric mean of theirs, each with the share that the part has in
its step. The spread is that of whole steps between networks, which is what another network will differ
by; parts that scatter against each other do not count twice, and the factors of all parts share their draws. Of three
values a spread is hardly known, so it is estimated together with an assumed one, `STEP_SD`, that counts as much as
`_ASSUMED` networks.

The factors are constants of the family `step`, and a timer multiplies every price of their phase by them. Without
canary steps (other machines' tables, short budgets) there is no factor, and `STEP_SD` is part of the common spread.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibration.draws import standard_rows, unit_mean_factors
from calibration.features import execution_of
from calibration.repeats import DISTURBED, checked_samples
from calibration.timers import CalibratedTimer
from oracle.constants import LARGEST_LOG_SD, POSSIBLE, STEP, Calibration, Constant, KernelFit
from oracle.errors import NotCalibrated, UnknownName
from oracle.estimate import Floats
from oracle.layer import Phase
from oracle.plan import StepPart, Task, tasks_of
from oracle.pricing import Method
from profiler.measurement import Measurement
from profiler.steps.canaries import CANARY, Canary

STEP_SD = 0.1
"""What a step does beside its kernels, or to them, as a spread of ln(seconds), where no canary says it: caches that
other layers have emptied, pages that the allocator faults in again, copies of gradients. On a server CPU four sums of
kernels, each taken between two runs of the steps, lay between 16 % below and 2 % above the steps of AlexNet and
ResNet-50, 12 % as a root mean square, some of which is the machine's own drift."""

STEP_PARTS = {
    "forward": (StepPart.FORWARD,),
    "backward": (StepPart.BACKWARD_DATA, StepPart.BACKWARD_WEIGHT),
    "update": (StepPart.UPDATE,),
}
"""The parts of a step whose clocks are read."""

LEAST_MEASURED = 0.8
"""Share of a canary's price that its own measured kernels must have: else the ratio is that of the fits' errors."""

_ASSUMED = 2.0
_PHASES = {
    "forward": (Phase.FORWARD,),
    "backward": (Phase.BACKWARD_DATA, Phase.BACKWARD_WEIGHT),
    "update": (Phase.UPDATE,),
}
_LEAST_LOG, _MOST_LOG = (math.log(bound) for bound in POSSIBLE["step_factor"])


def is_canary(measurement: Measurement) -> bool:
    """Whether a measurement is of a part of a canary's step."""
    return measurement.micro == CANARY


def has_step_factors(calibration: Calibration) -> bool:
    """Whether canary steps were measured, so that the common spread holds nothing of the step."""
    return any(fit.family == STEP for fit in calibration.fits)


def of_kernels_alone(calibration: Calibration) -> Calibration:
    """The calibration without what a step makes of kernels: neither its factor nor its spread."""
    if has_step_factors(calibration):
        return replace(calibration, fits=tuple(fit for fit in calibration.fits if fit.family != STEP))
    return replace(calibration, common_sd=math.sqrt(max(calibration.common_sd**2 - STEP_SD**2, 0.0)))


@dataclass(frozen=True)
class _Part:
    """One part of a canary's step: its seconds there, the sum of its kernels, and what they do."""

    network: str
    step_s: float
    kernels_s: float
    samples: int
    flop: float
    bytes: float

    @property
    def log(self) -> float:
        """ln(seconds in the step / sum of the kernels), within what a factor may be."""
        return _log_ratio(self.step_s, self.kernels_s)


@dataclass(frozen=True)
class _Spread:
    """What networks differ by: sd of ln(factor) of another one, and the mean error of leaving one out."""

    log_sd: float
    held_out_error: float


def step_fits(kernels: Calibration, measurements: Iterable[Measurement]) -> tuple[KernelFit, ...]:
    """The factors of a device's steps; none where no canary was measured with its kernels.

    Args:
        kernels: what was fitted to the kernels of the same run, without any factor.
        measurements: of the run; those that are no canaries are passed over.
    """
    by_canary: dict[tuple[str, str, str], list[Measurement]] = defaultdict(list)
    for measurement in filter(is_canary, measurements):
        checked_samples(measurement)
        if not DISTURBED.union({"launch-bound"}).intersection(measurement.flags):
            by_canary[measurement.phase, measurement.execution, str(measurement.case["model"])].append(measurement)
    parts: dict[tuple[str, str], list[_Part]] = defaultdict(list)
    for (part, execution, _), visits in by_canary.items():
        for found in _measured_part(kernels, part, execution, visits):
            parts[part, execution].append(found)
    totals = _totals(parts)
    spreads = {precision: _spread(networks) for precision, networks in totals.items()}
    shared = standard_rows("/".join((kernels.device, kernels.validity_key, kernels.created_at, STEP)), 1)[0]
    return tuple(
        _fit(phase, execution, canaries, _factor(canaries, totals[precision]), spreads[precision], shared)
        for (part, execution), canaries in parts.items()
        for precision in [_precision(execution)]
        for phase in _PHASES[part]
    )


def _precision(execution: str) -> str:
    """What the parts of one step have in common: kernels and updates have keys of their own behind it."""
    return execution.partition("/")[0]


_Networks = Mapping[str, tuple[float, float]]
"""Seconds of each network's step, and of its kernels."""


def _totals(parts: Mapping[tuple[str, str], Sequence[_Part]]) -> Mapping[str, _Networks]:
    """Whole steps, for each precision."""
    totals: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for (_, execution), canaries in parts.items():
        networks = totals[_precision(execution)]
        for part in canaries:
            step_s, kernels_s = networks.get(part.network, (0.0, 0.0))
            networks[part.network] = (step_s + part.step_s, kernels_s + part.kernels_s)
    return totals


def _log_ratio(step_s: float, kernels_s: float) -> float:
    return min(max(math.log(step_s / kernels_s), _LEAST_LOG), _MOST_LOG)


def _factor(canaries: Sequence[_Part], networks: _Networks) -> float:
    """The mean over networks, each with the share that the part has in its step: a trifle says nothing."""
    shares = [part.kernels_s / networks[part.network][1] for part in canaries]
    return math.exp(float(np.average([part.log for part in canaries], weights=shares)))


def _spread(networks: _Networks) -> _Spread:
    logs = np.array([_log_ratio(*total) for total in networks.values()])
    count, middle = len(logs), logs.mean()
    variance = (_ASSUMED * STEP_SD**2 + float(((logs - middle) ** 2).sum())) / (_ASSUMED + count - 1)
    log_sd = math.sqrt(variance * (1 + 1 / count))  # of another network, about a mean of so many
    others = (logs.sum() - logs) / (count - 1) if count > 1 else logs + log_sd
    return _Spread(min(log_sd, LARGEST_LOG_SD), float(np.abs(np.expm1(others - logs)).mean()))


def _measured_part(kernels: Calibration, part: str, execution: str, visits: Sequence[Measurement]) -> Iterator[_Part]:
    """One part of one canary over all its visits; none where its kernels were not measured."""
    try:
        canary = Canary(str(visits[0].case["model"]), int(visits[0].case["samples"]))
        tasks = [task for task in tasks_of(canary.graph, canary.graph.nodes, canary.samples) if _is_of(task, part)]
        timer = CalibratedTimer(kernels, execution_of(execution, _PHASES[part][0]))
        prices = timer.price([task.call for task in tasks])
    except (NotCalibrated, UnknownName):
        return
    seconds = np.array([task.count for task in tasks]) * prices.middle_s
    measured = np.array([method is Method.MEASURED for method in prices.methods])
    if seconds @ measured < LEAST_MEASURED * seconds.sum():
        return
    work = [task.call.layer.work(task.call.phase, task.call.samples, timer.execution) for task in tasks]
    yield _Part(
        network=canary.model,
        step_s=float(np.exp(np.median(np.log([visit.median_s for visit in visits])))),
        kernels_s=float(seconds.sum()),
        samples=sum(len(visit.device_s) for visit in visits),
        flop=sum(task.count * item.flop for task, item in zip(tasks, work, strict=True)),
        bytes=sum(task.count * item.bytes for task, item in zip(tasks, work, strict=True)),
    )


def _is_of(task: Task, part: str) -> bool:
    return task.part in STEP_PARTS[part]


def _fit(
    phase: Phase, execution: str, canaries: Sequence[_Part], factor: float, spread: _Spread, shared: Floats
) -> KernelFit:
    draws = np.clip(factor * unit_mean_factors(spread.log_sd * shared), *POSSIBLE["step_factor"])
    lo, hi = (float(bound) for bound in np.quantile(draws, [0.1, 0.9]))
    value = float(np.clip(factor, lo, hi))
    return KernelFit(
        family=STEP,
        phase=phase,
        execution=execution,
        constants=(Constant(STEP, phase, execution, "step_factor", value, "1", lo, hi, tuple(draws.tolist())),),
        shapes=len(canaries),
        samples=sum(part.samples for part in canaries),
        held_out_error=spread.held_out_error,
        residual_sd=spread.log_sd,
        flop_lo=min(part.flop for part in canaries),
        flop_hi=max(part.flop for part in canaries),
        bytes_lo=min(part.bytes for part in canaries),
        bytes_hi=max(part.bytes for part in canaries),
    )
