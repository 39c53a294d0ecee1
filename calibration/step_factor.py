"""What a training step makes of its kernels: a factor for forward, backward and update, from canary steps.

A canary's step (`profiler.steps.canaries`) over the sum of its own kernels' prices says how much longer the kernels of
this machine take inside a step, with all that a step does beside them. What three unlike networks have in common is
taken for the machine's: the factor is the geometric mean of theirs, and the spread is that between networks, which is
what another network will differ by. Of three values a spread is hardly known, so it is estimated together with an
assumed one, `STEP_SD`, that counts as much as `_ASSUMED` networks. Forward, backward and update scatter together
(one visit of a canary is quick or slow as a whole), so their factors share their draws.

The factors are constants of the family `step`, and a timer multiplies every price of their phase by them. Without
canary steps (other machines' tables, short budgets) there is no factor, and `STEP_SD` is part of the common spread.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
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
class _Ratio:
    """One part of one canary: ln(its seconds in a step / the sum of its kernels), and what was priced."""

    log: float
    samples: int
    flop: float
    bytes: float


def step_fits(kernels: Calibration, measurements: Iterable[Measurement]) -> tuple[KernelFit, ...]:
    """The factors of a device's steps; none where no canary was measured with its kernels.

    Args:
        kernels: what was fitted to the kernels of the same run, without any factor.
        measurements: of the run; those that are no canaries are passed over.
    """
    by_part: dict[tuple[str, str], dict[str, list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    for measurement in filter(is_canary, measurements):
        checked_samples(measurement)
        if not DISTURBED.union({"launch-bound"}).intersection(measurement.flags):
            by_part[measurement.phase, measurement.execution][str(measurement.case["model"])].append(measurement)
    shared = standard_rows("/".join((kernels.device, kernels.validity_key, kernels.created_at, STEP)), 1)[0]
    fits: list[KernelFit] = []
    for (part, execution), canaries in by_part.items():
        ratios = [ratio for visits in canaries.values() for ratio in _ratios(kernels, part, execution, visits)]
        if ratios:
            fits += [_fit(phase, execution, ratios, shared) for phase in _PHASES[part]]
    return tuple(fits)


def _ratios(kernels: Calibration, part: str, execution: str, visits: Sequence[Measurement]) -> Iterator[_Ratio]:
    """The ratio of one canary's part over all its visits; none where its kernels were not measured."""
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
    yield _Ratio(
        log=float(np.median([math.log(visit.median_s) for visit in visits])) - math.log(seconds.sum()),
        samples=sum(len(visit.device_s) for visit in visits),
        flop=sum(task.count * item.flop for task, item in zip(tasks, work, strict=True)),
        bytes=sum(task.count * item.bytes for task, item in zip(tasks, work, strict=True)),
    )


def _is_of(task: Task, part: str) -> bool:
    return task.part in STEP_PARTS[part]


def _fit(phase: Phase, execution: str, ratios: Sequence[_Ratio], shared: Floats) -> KernelFit:
    logs = np.clip(np.array([ratio.log for ratio in ratios]), _LEAST_LOG, _MOST_LOG)
    middle, count = float(logs.mean()), len(logs)
    variance = (_ASSUMED * STEP_SD**2 + float(((logs - middle) ** 2).sum())) / (_ASSUMED + count - 1)
    spread = math.sqrt(variance * (1 + 1 / count))  # of another network, about a mean of so many
    draws = np.clip(math.exp(middle) * unit_mean_factors(spread * shared), *POSSIBLE["step_factor"])
    lo, hi = (float(bound) for bound in np.quantile(draws, [0.1, 0.9]))
    value = float(np.clip(math.exp(middle), lo, hi))
    constant = Constant(STEP, phase, execution, "step_factor", value, "1", lo, hi, tuple(draws.tolist()))
    others = (logs.sum() - logs) / (count - 1) if count > 1 else np.array([middle - spread])
    return KernelFit(
        family=STEP,
        phase=phase,
        execution=execution,
        constants=(constant,),
        shapes=count,
        samples=sum(ratio.samples for ratio in ratios),
        held_out_error=float(np.abs(np.expm1(others - logs)).mean()),
        residual_sd=min(spread, LARGEST_LOG_SD),
        flop_lo=min(ratio.flop for ratio in ratios),
        flop_hi=max(ratio.flop for ratio in ratios),
        bytes_lo=min(ratio.bytes for ratio in ratios),
        bytes_hi=max(ratio.bytes for ratio in ratios),
    )
