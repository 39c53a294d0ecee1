"""What repeated visits of the same cases say: the median of each shape, its own spread, and the drift of the machine.

A case is visited in several rounds, minutes apart, and each visit takes several samples. Within a visit samples
scatter fast, and the median of a visit averages that out; between visits clocks, temperature and neighbours move, and
no number of samples in one visit shows it. So the spread of a shape is that of its visits plus the error of one
visit's median; with a single visit the scatter of its samples has to stand in for what was not seen. It is never
taken as less than 1 %: the same shape at two places of one real step differs by about that.

What moves all cases of a round together is the machine's drift. What of it the anchors have seen is divided out before
(`calibration.drift`); the rest does not average out over the layers of a step, so it is kept apart, as one number for
the whole calibration.

The median is that of clean visits: a visit in which something else had the core (`preempted`, `stolen`) or the clocks
were held back (`throttled`) is no ordinary state of the machine. It is kept in the store with its flag, and a case that
has no other takes all it has. Not the fastest visit: `profiler.stopping` says why.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from calibration.features import canonical
from oracle.constants import LARGEST_LOG_SD, MeasuredShape
from oracle.errors import BadInput
from oracle.estimate import Floats
from oracle.pricing import LayerCall
from profiler.case import call_from_case
from profiler.measurement import Measurement

LEAST_LOG_SD = 0.01
"""The least spread of a measured shape, in ln(seconds)."""

LEAST_DRIFT_SD = 0.02
"""The least drift of a machine between runs, in ln(seconds): a run sees some minutes of it, never all."""

UNSEEN_DRIFT_SD = 0.04
"""The drift that is assumed where too few cases were visited twice: with a common error of this size the intervals of
totals covered in five public collections of GPU kernels."""

LEAST_CASES = 8
"""Cases that a round must have for their median to be the machine's drift and not their own noise."""

DISTURBED = frozenset({"preempted", "stolen", "throttled"})
"""Flags of visits that a case does without where it has others."""

Visits = dict[tuple[LayerCall, str], list[Measurement]]


def checked_samples(measurement: Measurement) -> Floats:
    """The device's samples in seconds.

    Raises:
        BadInput: there are none, or one is not a positive number.
    """
    samples = np.asarray(measurement.device_s, dtype=np.float64)
    where = f"the {measurement.micro} {measurement.phase} measurement of {measurement.taken_at}"
    if not samples.size:
        raise BadInput(f"{where} has no samples")
    wrong = samples[~(np.isfinite(samples) & (samples > 0))]
    if wrong.size:
        raise BadInput(f"{where} has a sample of {wrong[0]:g} s; samples are positive numbers of seconds")
    return samples


def visits(measurements: Sequence[Measurement]) -> Visits:
    """The clean visits of each (call, execution), or all where none is clean, in the order in which they were taken.

    Raises:
        BadInput: a measurement describes no layer, or has a sample that is not a positive number.
    """
    found: Visits = defaultdict(list)
    for measurement in sorted(measurements, key=lambda item: item.taken_at):
        checked_samples(measurement)
        call = canonical(call_from_case(measurement.case, measurement.phase))
        found[(call, measurement.execution)].append(measurement)
    return {key: [visit for visit in taken if not _disturbed(visit)] or taken for key, taken in found.items()}


def _disturbed(measurement: Measurement) -> bool:
    return not DISTURBED.isdisjoint(measurement.flags)


def disturbed_notes(found: Visits) -> Iterator[str]:
    """That some cases have no clean visit."""
    count = sum(_disturbed(taken[0]) for taken in found.values())
    if count:
        yield f"every visit of {count} of {len(found)} cases was preempted or throttled; their medians are of those"


def _spread(log_samples: Floats) -> float:
    """Standard deviation from the quartiles, which a few preempted samples do not move."""
    low, high = np.quantile(log_samples, [0.25, 0.75])
    return float(high - low) / 1.349


def measured_shape(call: LayerCall, execution: str, taken: Sequence[Measurement]) -> MeasuredShape:
    """The median over visits of a shape, and how far a repeat may lie from it."""
    logs = [np.log(checked_samples(measurement)) for measurement in taken]
    medians = np.array([np.median(values) for values in logs])
    if len(logs) == 1:
        log_sd = _spread(logs[0])
    else:
        # The median of n normal samples has 1.2533 sd / sqrt(n).
        errors = [1.2533 * _spread(values) / math.sqrt(len(values)) for values in logs]
        log_sd = math.sqrt(float(np.var(medians, ddof=1)) + float(np.mean(np.square(errors))))
    return MeasuredShape(
        layer=call.layer,
        phase=call.phase,
        samples=call.samples,
        execution=execution,
        seconds=float(np.exp(np.median(medians))),
        log_sd=min(max(log_sd, LEAST_LOG_SD), LARGEST_LOG_SD),
        count=sum(len(values) for values in logs),
    )


def drift_sd(found: Visits) -> float:
    """Standard deviation, in ln(seconds), of what moved all cases of a round together."""
    by_round: dict[int, list[float]] = defaultdict(list)
    for taken in found.values():
        if len(taken) > 1:
            medians = np.log([measurement.median_s for measurement in taken])
            for number, shift in enumerate(medians - medians.mean()):
                by_round[number].append(float(shift))
    shifts = np.array([np.median(values) for values in by_round.values() if len(values) >= LEAST_CASES])
    if len(shifts) < 2:
        return UNSEEN_DRIFT_SD
    return max(float(np.std(shifts, ddof=1)), LEAST_DRIFT_SD)
