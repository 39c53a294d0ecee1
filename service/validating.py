"""Measure real training steps on this machine beside what a calibration predicts for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibration.timers import CalibratedTimer
from db.store import Store
from oracle.constants import Calibration
from oracle.errors import BadInput
from oracle.estimate import Estimate
from oracle.projection import Projection
from profiler.backends.base import open_backend
from profiler.flags import meaning
from profiler.measurement import Measurement
from profiler.state_sampler import sampling
from profiler.steps.serial import StepSettings, time_steps
from profiler.stopping import StoppingRule
from service.measuring_requests import Progress, ValidateRequest, silent
from service.models import find_question
from service.predicting import feasible_step, find_calibration, serial_projection, validity_notes
from service.staleness import changes


@dataclass(frozen=True)
class ValidatedStep:
    """One real step beside its prediction."""

    projection: Projection
    measurement: Measurement

    @property
    def predicted(self) -> Estimate:
        """The predicted step, in seconds."""
        return feasible_step(self.projection)

    @property
    def measured_s(self) -> float:
        """The median of the measured steps."""
        return self.measurement.median_s

    @property
    def difference(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted.middle / self.measured_s - 1

    @property
    def inside(self) -> bool:
        """Whether the measured step lies inside the 80 % interval."""
        lo, hi = self.predicted.interval()
        return lo <= self.measured_s <= hi


@dataclass(frozen=True)
class ValidateResult:
    """Real steps beside predicted ones."""

    calibration: Calibration
    steps: tuple[ValidatedStep, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "calibration": self.calibration.name,
            "steps": [
                {
                    "model": step.projection.job.model.name,
                    "batch": step.projection.job.global_batch,
                    "predicted_s": step.predicted.middle,
                    "interval_s": list(step.predicted.interval()),
                    "measured_s": step.measured_s,
                    "samples_s": list(step.measurement.device_s),
                    "difference": step.difference,
                    "inside": step.inside,
                    "flags": list(step.measurement.flags),
                }
                for step in self.steps
            ],
            "notes": list(self.notes),
        }


def validate(store: Store, request: ValidateRequest, progress: Progress = silent) -> ValidateResult:
    """Predict the serial step of each model, then run it here for real.

    Raises:
        BadInput: the calibration belongs to another device.
        NotCalibrated: a model needs what the calibration lacks.
    """
    found = find_calibration(store, request.calibration)
    backend = open_backend(request.device)
    if backend.device != found.device:
        raise BadInput(f"calibration '{found.name}' is of {found.device}, but this is {backend.device}")
    environment = backend.environment()
    run_id = store.begin_run("validate", backend.device, environment)
    settings = StepSettings(run_id, StoppingRule(min_samples=5, max_samples=100, max_s=request.budget_s))
    timer = CalibratedTimer(found, request.execution)
    steps = []
    for index, (name, samples) in enumerate(request.models):
        progress(index, len(request.models), f"{name}, {samples} samples a step")
        question = find_question(name, samples)
        projection = serial_projection(question.graph, samples, timer)
        with sampling(backend) as sampler, sampler.window() as window:
            timed = time_steps(question.graph, samples, request.execution, backend, settings, question.make)
        measurement = window.summary.added_to(timed.measurement)
        store.add_measurement(measurement)
        steps.append(ValidatedStep(projection, measurement))
    store.finish_run(run_id)
    progress(len(request.models), len(request.models), "done")
    names = found.environment.keys() | environment.identity.keys()
    changed = changes(found.environment, environment.identity, names)
    flagged = (
        f"the steps of {step.projection.job.model.name} are flagged {meaning(flag)}"
        for step in steps
        for flag in step.measurement.flags
    )
    notes = dict.fromkeys((*flagged, *changed, *validity_notes(found)))
    return ValidateResult(found, tuple(steps), tuple(notes))
