"""What a profile adds to a calibration: the layers of a model as they are inside its step.

The shapes of the profiled steps replace those that were measured alone; the constants stay. Two corrections make the
sum of a step's prices its measured time.

* What a step does beside its kernels (Python, autograd, copies of gradients, a loss that is no layer) is shared out
  over the kernels of the same part of the step, in proportion to their time: one factor for forward, one for backward,
  one for the update. On CPUs most of it is memory that is given back and faulted in again, which grows with the tensors
  as the kernels do.
* Calls that the profile could not see keep the base calibration's price.

Other batches. A layer in a phase differs from the fitted constants by a factor that belongs to the layer: how well its
algorithm suits its channels and windows, what it finds in the caches, the pages that it faults in. That factor was
measured at the profiled batch and carries over; the constants only have to say how time grows from one batch to
another, where their errors cancel. `calibration.timers` does that for every shape that was measured at another batch.

Such a calibration holds nothing of what a step does beside its kernels (`calibration.step_factor`), since that has
been measured, but it was measured in one process at one moment: `RUN_SD` and the machine's drift stay. So it is a
calibration for the profiled models: others are priced as before, with intervals that lack that share, and a note says
so. The anchors are not used to bring a profile to the time of its base: visited beside training steps they took 10 to
20 % longer than beside other kernels, while the steps themselves did not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibration.features import canonical
from calibration.repeats import LEAST_DRIFT_SD, measured_shape
from calibration.step_factor import STEP_PARTS, of_kernels_alone
from calibration.timers import CalibratedTimer
from oracle.constants import Calibration, MeasuredShape
from oracle.errors import BadInput, NotCalibrated
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.model import ModelGraph
from oracle.plan import tasks_of
from oracle.pricing import LayerCall
from profiler.case import call_from_case
from profiler.measurement import Measurement

RUN_SD = 0.08
"""Spread of ln(seconds) of one step over fresh processes, minutes apart: on a server CPU, two medians of each of twenty
steps lay 7.5 % apart in the mean, over the square root of two."""


@dataclass(frozen=True)
class ProfiledStep:
    """A step with the measurements of its layers.

    Args:
        graph, samples, execution: what was run.
        measurements: of its layers, in situ.
        parts_s: seconds of each of `STEP_PARTS` in undisturbed steps.
    """

    graph: ModelGraph
    samples: int
    execution: Execution
    measurements: tuple[Measurement, ...]
    parts_s: Mapping[str, float]


def with_profiles(base: Calibration, steps: Sequence[ProfiledStep], name: str, created_at: str) -> Calibration:
    """A new calibration: the base, with the shapes of profiled steps as they are in situ.

    Raises:
        BadInput: the profiles are of another device or environment.
    """
    for measurement in (item for step in steps for item in step.measurements):
        if measurement.device != base.device or measurement.environment.validity_key != base.validity_key:
            raise BadInput(
                f"calibration '{base.name}' is of {base.device} in another environment than the profile of "
                f"{measurement.device}; calibrate again, and then profile"
            )
    base = of_kernels_alone(base)
    found: dict[tuple[object, ...], list[MeasuredShape]] = defaultdict(list)
    for step in steps:
        for shape in _shapes(base, step):
            found[shape.key].append(shape)
    shapes = {shape.key: shape for shape in base.shapes} | {key: _mean(same) for key, same in found.items()}
    named = ", ".join(f"{step.graph.name}:{step.samples}" for step in steps)
    note = f"for the steps of {named}, whose layers were timed in situ; intervals of other models are too narrow"
    return replace(
        base,
        name=name,
        created_at=created_at,
        shapes=tuple(shapes.values()),
        common_sd=math.hypot(max(base.common_sd, LEAST_DRIFT_SD), RUN_SD),
        notes=(*base.notes, note),
    )


def _shapes(base: Calibration, step: ProfiledStep) -> list[MeasuredShape]:
    """The step's shapes, so that each part of the step adds up to what it took."""
    shapes: dict[LayerCall, MeasuredShape] = {}
    for measurement in step.measurements:
        call = canonical(call_from_case(measurement.case, measurement.phase))
        shapes[call] = measured_shape(call, measurement.execution, [measurement])
    factors = _factors(base, step, shapes)
    scaled = []
    for call, shape in shapes.items():
        factor = factors["update" if call.phase is Phase.UPDATE else _part_of(call.phase)]
        scaled.append(replace(shape, seconds=shape.seconds * factor))
    return scaled


def _part_of(phase: Phase) -> str:
    return "forward" if phase is Phase.FORWARD else "backward"


def _factors(base: Calibration, step: ProfiledStep, shapes: Mapping[LayerCall, MeasuredShape]) -> dict[str, float]:
    """For each part of the step, what it took over the sum of its layers.

    Gradients that are added up belong to backward, but are the forward of a sum and are scaled with forward.
    """
    tasks = tasks_of(step.graph, step.graph.nodes, step.samples)
    prices = _prices(base, step.execution, {canonical(task.call) for task in tasks}, shapes)
    factors = {}
    for part, members in STEP_PARTS.items():
        total_s = sum(task.count * prices[canonical(task.call)] for task in tasks if task.part in members)
        factors[part] = step.parts_s[part] / total_s if total_s else 1.0
    return factors


def _prices(
    base: Calibration, execution: Execution, calls: Iterable[LayerCall], shapes: Mapping[LayerCall, MeasuredShape]
) -> dict[LayerCall, float]:
    timer = CalibratedTimer(base, execution)
    prices = {}
    for call in calls:
        if call in shapes:
            prices[call] = shapes[call].seconds
        else:
            try:
                prices[call] = float(timer.price([call]).middle_s[0])
            except NotCalibrated:
                prices[call] = 0.0  # whoever predicts the model is told so
    return prices


def _mean(same: Sequence[MeasuredShape]) -> MeasuredShape:
    """One shape that several profiled models have."""
    first = same[0]
    seconds = float(np.exp(np.mean([math.log(shape.seconds) for shape in same])))
    return replace(first, seconds=seconds, log_sd=max(shape.log_sd for shape in same))
