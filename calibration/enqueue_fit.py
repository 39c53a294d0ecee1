"""Fit what enqueueing costs the host: `enqueue_s` and `enqueue_step_s` beside a family's other constants.

Only what an accelerator measured counts: on a CPU the calling thread does the work itself, and its clock says nothing
of waiting. The environment of an accelerator names its multiprocessors. Kernels that were timed inside a step have the
device's time in place of the host's, and those that a CUDA graph launches share one launch, so both are left out.

A family's number is the mean over its shapes of their medians, since a step adds up its calls; an update is a line in
the number of its tensors. Where the measured updates cannot tell the line's two constants apart, since they have one
number of tensors, an implementation that walks over its tensors one by one costs something for each of them, any other
something for each step. Rows are divided by what is predicted and not by what was measured, and intervals are those of
the sandwich, as for the constants of kernels (`calibration.kernels`).
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from calibration.features import execution_of, family
from calibration.intervals import Uncertainty, sandwich
from calibration.kernels import UNTESTED_SD
from calibration.repeats import Visits
from oracle.constants import POSSIBLE, UNITS, WIDEST_FACTOR, Constant, KernelFit
from oracle.estimate import Floats
from oracle.layer import Phase
from profiler.measurement import Measurement

Key = tuple[str, Phase, str]

LEAST_SD = 0.02
"""The least spread of a constant of the host, in ln(seconds)."""

_ROUNDS = 4


def with_enqueueing(fits: Sequence[KernelFit], found: Visits) -> tuple[KernelFit, ...]:
    """The fits, with the host's constants where an accelerator measured them.

    Args:
        fits: of kernel families; a family without one gets no constant.
        found: the visits that they were fitted to.
    """
    points = _points(found)
    return tuple(replace(fit, constants=(*fit.constants, *_constants(fit.key, points[fit.key]))) for fit in fits)


def is_of_accelerator(measurement: Measurement) -> bool:
    """Whether the host's clock of a kernel's measurement is the time to enqueue it."""
    return "multiprocessors" in measurement.environment.identity and "in-situ" not in measurement.flags


def _points(found: Visits) -> dict[Key, list[tuple[int, float]]]:
    """Tensors (of an update, else 1) and the host's median seconds of every shape, by family."""
    points: dict[Key, list[tuple[int, float]]] = defaultdict(list)
    for (call, key), taken in found.items():
        medians = [statistics.median(item.host_s) for item in taken if item.host_s and is_of_accelerator(item)]
        if not medians or not min(medians) > 0 or execution_of(key, call.phase).graph:
            continue
        tensors = len(call.layer.param_shapes) if call.phase is Phase.UPDATE else 1
        points[family(call.layer, call.phase), call.phase, key].append((tensors, statistics.median(medians)))
    return points


def _constants(key: Key, points: Sequence[tuple[int, float]]) -> Iterator[Constant]:
    if not points:
        return
    tensors, times = np.array(points, dtype=np.float64).T
    names: tuple[str, ...] = ("enqueue_s",)
    table = tensors[:, None]
    if key[1] is Phase.UPDATE:
        names, table = ("enqueue_s", "enqueue_step_s"), np.column_stack((tensors, np.ones(len(tensors))))
        both = _solve(table, times)
        if both is None or (2 * both[1].half_widths > math.log(WIDEST_FACTOR)).any():
            column = 0 if execution_of(key[2], Phase.UPDATE).update == "for_loop" else 1
            names, table = names[column : column + 1], table[:, column : column + 1]
    values, known = _solve(table, times) or (np.array([times.mean()]), _untested())
    draws = known.draws(values, f"{'/'.join(key)}/enqueue/{times.tolist()}")
    for row, (name, value) in enumerate(zip(names, values.tolist(), strict=True)):
        least, most = POSSIBLE[name]
        factor = math.exp(float(known.half_widths[row]))
        yield Constant(
            *key,
            quantity=name,
            value=value,
            unit=UNITS[name],
            lo=max(value / factor, least),
            hi=min(value * factor, most),
            draws=tuple(np.clip(draws[row], least, most).tolist()),
        )


def _solve(table: Floats, times: Floats) -> tuple[Floats, Uncertainty] | None:
    """Positive coefficients with the uncertainty of their logarithms; None where they cannot be told."""
    if len(times) <= table.shape[1] or np.linalg.matrix_rank(table) < table.shape[1]:
        return None
    scale = times
    for _ in range(_ROUNDS):
        values: Floats = np.asarray(np.linalg.lstsq(table / scale[:, None], times / scale)[0], dtype=np.float64)
        if (values <= 0).any():
            return None
        scale = table @ values
    known = sandwich(table / scale[:, None], times / scale - 1)
    if known is None:
        return None
    known = known.relative_to(values)
    return values, Uncertainty(known.covariance + LEAST_SD**2 * np.eye(len(values)), known.degrees)


def _untested() -> Uncertainty:
    """Of one shape, beside which there is no second one to test with."""
    return Uncertainty(np.array([[UNTESTED_SD**2]]), np.array([np.inf]))
